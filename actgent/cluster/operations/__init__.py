"""Operations on a cluster from a process that is not a node: status, drain, repartition, dead letters."""
