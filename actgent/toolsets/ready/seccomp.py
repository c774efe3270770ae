"""A filter of system calls for commands in a sandbox: what no command of a model needs, and attacks on kernels are made of.

Namespaces keep a command from what is outside, and the kernel below is the same. So calls are refused that namespaces do not
divide (keys, performance counters, sockets of a hypervisor), that only reach more of the kernel (bpf, io_uring, mounts), or
that look into other processes. bubblewrap sets the filter as the last thing before the command, whose children have it, too.

A filter is a program for the machine of BPF (seccomp(2)); the numbers of system calls are those of Linux' headers.
"""

import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions: load a word of the call, jump where it is equal, or not below, and return."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where these stand in what the filter is given."""
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_FAMILIES = (1, 2, 10, 16)
"""Sockets of files, IPv4, IPv6 and netlink: namespaces divide these."""
_X32 = 0x4000_0000
"""From here on stand the calls of x86_64 once more, for another ABI."""
_SINCE_424 = (428, 429, 430, 431, 432, 433, 442, 447)
"""open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, memfd_secret: the same on all machines."""
_IO_URING = (425, 426, 427)
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


def seccomp_program(machine: str | None = None) -> bytes:
    """The filter for a machine, by default this one; empty for one whose numbers are not known here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    architecture, socket, *refused = known
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_returned(_REFUSE | _ENOSYS, _AT_LEAST, _X32),
    ]
    for number in _IO_URING:  # programs go on without it where it is not there
        program += _returned(_REFUSE | _ENOSYS, _EQUAL, number)
    for number in (*refused, *_SINCE_424):
        program += _returned(_REFUSE | _EPERM, _EQUAL, number)
    program += [(_EQUAL, 1, 0, socket), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in _FAMILIES:
        program += _returned(_ALLOW, _EQUAL, family)
    program.append((_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT))
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def _returned(value: int, compare: int, number: int) -> list[tuple[int, int, int, int]]:
    """Return a value where the loaded word is as said, and go on otherwise."""
    return [(compare, 0, 1, number), (_RETURN, 0, 0, value)]
