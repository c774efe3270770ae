"""System call filter for sandboxed commands: forbids calls that commands do not need and that attacks on kernels use.

Namespaces isolate a command, but all namespaces share the kernel. So the filter forbids calls that namespaces do not separate:
keys, performance counters, hypervisor sockets. It also forbids calls that expose more of the kernel (bpf, io_uring, mounts), and
calls that access other processes. bubblewrap installs the filter directly before it starts the command. Child processes inherit
the filter.

A filter is a BPF program (seccomp(2)); the system call numbers are from Linux' headers.
"""

import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54
"""BPF instructions: load a word of the call data, jump if equal, jump if at least, return, bitwise and."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets of the fields in the call data that the filter reads."""
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_FAMILIES = (1, 2, 10, 16)
"""Address families that namespaces separate: Unix, IPv4, IPv6 and netlink."""
_CONNECTED_PAIRS, _SOCKET_TYPE = (1, 5), 0xF
"""SOCK_STREAM and SOCK_SEQPACKET, and the mask of the type. A datagram socket of a pair can still send to any path."""
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_X32 = 0x4000_0000
"""First system call number of the x32 ABI of x86_64."""
_SINCE_424 = (428, 429, 430, 431, 432, 433, 442, 447)
"""open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, memfd_secret: the same on all machines."""
_IO_URING = (425, 426, 427)
"""System call numbers of io_uring_setup, io_uring_enter and io_uring_register. They are equal on all machines."""
_SHARED_MEMORY = {"x86_64": (29, 64, 68, 319), "aarch64": (194, 190, 186, 279)}
"""shmget, semget, msgget, memfd_create. Memory of System V segments that no process has attached belongs to no process."""
_MACHINES = {
    # Its name for the kernel, the number of `socket`, and of: add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd,
    # ptrace, process_vm_readv, process_vm_writev, kexec_load, kexec_file_load, init_module, finit_module, delete_module,
    # mount, umount2, pivot_root, chroot, setns, unshare, open_by_handle_at, name_to_handle_at, quotactl, swapon, swapoff,
    # reboot, acct, syslog, vhangup, lookup_dcookie, kcmp.
    "x86_64": (
        *(0xC000_003E, 41),
        *(248, 249, 250, 321, 298, 323, 101, 310, 311, 246, 320, 175, 313, 176, 165, 166, 155, 161, 308, 272),
        *(304, 303, 179, 167, 168, 169, 163, 103, 153, 212, 312),
    ),
    "aarch64": (
        *(0xC000_00B7, 198),
        *(217, 218, 219, 280, 241, 282, 117, 270, 271, 104, 294, 105, 273, 106, 40, 39, 41, 51, 268, 97),
        *(265, 264, 60, 224, 225, 142, 89, 116, 58, 18, 272),
    ),
}


def seccomp_program(
    machine: str | None = None, *, allows_memfd: bool = True, allows_unix: bool = True
) -> bytes:
    """Return the system call filter for a machine as a BPF program.

    Return empty bytes if the system call numbers of the machine are unknown.

    Args:
        machine: Machine name as `uname -m` prints it; None for this machine.
        allows_memfd: False forbids unnamed files in memory, which only a memory cgroup can account for.
        allows_unix: False forbids Unix sockets that can connect to a path; pairs of connected sockets stay allowed.
    """
    name = machine or platform.machine()
    known = _MACHINES.get(name)
    if known is None:
        return b""
    architecture, socket, *refused = known
    socketpair = _SOCKETPAIR[name]
    *system_v, memfd = _SHARED_MEMORY[name]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_return_if(_REFUSE | _ENOSYS, _AT_LEAST, _X32),
    ]
    # ENOSYS: programs fall back as on a kernel without these calls.
    for number in (*_IO_URING, *system_v, *(() if allows_memfd else (memfd,))):
        program += _return_if(_REFUSE | _ENOSYS, _EQUAL, number)
    for number in (*refused, *_SINCE_424):
        program += _return_if(_REFUSE | _EPERM, _EQUAL, number)
    if not allows_unix:
        connected = [each for kind in _CONNECTED_PAIRS for each in _return_if(_ALLOW, _EQUAL, kind)]
        pair = [
            (_LOAD, 0, 0, _SECOND_ARGUMENT),
            (_AND, 0, 0, _SOCKET_TYPE),
            *connected,
            (_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT),
        ]
        program += [(_EQUAL, 0, len(pair), socketpair), *pair]
    program += [(_EQUAL, 1, 0, socket), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in _FAMILIES if allows_unix else _FAMILIES[1:]:
        program += _return_if(_ALLOW, _EQUAL, family)
    program.append((_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT))
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def _return_if(value: int, compare: int, number: int) -> list[tuple[int, int, int, int]]:
    """Make BPF instructions that end the filter with the result `value` if the loaded word matches `number`.

    `compare` is the comparison instruction.
    """
    return [(compare, 0, 1, number), (_RETURN, 0, 0, value)]
