#!/bin/bash
# Runs one suite in network and mount namespaces of its own: run.sh WORK PLUGINS SUITE FOLDER [FLAG…]
# PLUGINS is a folder of plugins below WORK.
work=$1 plugins=$2 suite=$3 folder=$4
shift 4
export SUITES_AGENTS=$work/agents
export PATH=$work/$plugins:$work/tools:$PATH
export work suite folder
rm -rf "$SUITES_AGENTS"
mkdir -p "$SUITES_AGENTS"
root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
export cgroup=viaduct-suites-$$
mkdir "$root/$cgroup"
echo "$cgroup" >"$work/cgroup"
export processes=$root/$cgroup/cgroup.procs
unshare --net --mount --propagation private bash -c '
    echo $$ >"$processes"
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t bpf bpf /sys/fs/bpf
    mount -t tmpfs tmpfs /run
    mkdir -p /run/netns /var/lib/cni /etc/cni
    mount --bind /run/netns /run/netns
    mount --make-shared /run/netns
    mount -t tmpfs tmpfs /var/lib/cni
    mount -t tmpfs tmpfs /etc/cni
    mount -t tmpfs tmpfs /tmp
    ip link set lo up
    ip netns add world
    ip link add up0 type veth peer name eth0 netns world
    ip address add 192.0.2.1/24 dev up0
    ip link set up0 up
    ip -n world address add 192.0.2.2/24 dev eth0
    ip -n world link set eth0 up
    ip route add default via 192.0.2.2
    cd "$work/sources/$folder"
    exec "$work/tests/$suite" "$@"
' suite "$@"
for pid in $(cat "$SUITES_AGENTS"/*/pid 2>/dev/null); do
    case $(readlink "/proc/$pid/exe") in
    */bin/viaductd) kill -KILL "$pid" ;;
    esac
done
for _ in $(seq 100); do
    rmdir "$root/$cgroup" 2>/dev/null && break
    sleep 0.1
done
