#!/bin/bash
# Executes the plugin of this name. Before that it starts an agent in the network namespace, unless
# one runs there: each namespace has its own, with its own /run/viaduct and bpffs.
work=WORK
dist=DIST
name=${0##*/}
case "$CNI_COMMAND:$name" in
VERSION:* | *:host-local | *:loopback | :*) exec "$dist/cni/$name" ;;
esac
inode=$(readlink /proc/self/ns/net)
state=$work/agents/${inode//[^0-9]/}
mkdir -p "$state"
exec 9>"$state/lock"
flock 9
pid=$(cat "$state/pid" 2>/dev/null)
if [ -z "$pid" ] || ! kill -0 "$pid" 2>/dev/null; then
    export state dist cgroup=$(cat "$work/cgroup")
    unshare --mount --propagation slave bash -c '
        mkdir -p /run/viaduct
        mount -t tmpfs tmpfs /run/viaduct
        mount -t bpf bpf /sys/fs/bpf
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        echo $$ >"$state/pid"
        exec "$dist/bin/viaductd" --cgroup="/sys/fs/cgroup/$cgroup" --flow-table-size=32768
    ' </dev/null >"$state/log" 2>&1 9>&- &
    mounts=/proc/$!/root
    until [ -S "$mounts/run/viaduct/viaduct.sock" ]; do
        if ! kill -0 $! 2>/dev/null; then
            cat "$state/log" >&2
            exit 1
        fi
        sleep 0.05
    done
    pid=$!
fi
flock -u 9
exec 9>&-
exec nsenter --target "$pid" --mount -- "$dist/cni/$name"
