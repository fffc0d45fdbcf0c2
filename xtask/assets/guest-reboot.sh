# Runs in a guest that has a small disk and reboots once. The first boot attaches pods, with records on the disk, and
# resets the machine. The second boot starts the agent with those records: it must have released everything of the first
# boot, and attach the same pods again. The pool has five IPv4 addresses, so a lease that was kept would fail an ADD.
# Needs $VIADUCT_DIST and $VIADUCT_TEST_PATIENCE.
set -eu
disk=/mnt/records
bpffs=/sys/fs/bpf/viaduct
socket=/run/viaduct/viaduct.sock
boot_id=$(cat /proc/sys/kernel/random/boot_id)

fail() {
    echo "FAILED: $*"
    exit 1
}
ctl() { "$VIADUCT_DIST/bin/viaductctl" "$@"; }
get() { curl --silent --show-error --fail --max-time 60 --unix-socket $socket "http://viaduct/v1/$1"; }

# $1: a list of the agent, its JSON as $2: no element.
is_empty() {
    test "$(printf %s "$2" | tr -d '[:space:]')" = '[]' || fail "$1 of the boot before: $2"
    echo "no $1 of the boot before"
}

start_agent() {
    "$VIADUCT_DIST/bin/viaductd" --state-dir $disk/viaduct \
        --pod-cidr 10.244.1.0/29 --pod-cidr fd00:10:244:1::/125 > $disk/agent.log 2>&1 &
    agent=$!
    tries=0
    until ctl status --json > /dev/null 2>&1; do
        kill -0 $agent 2> /dev/null || fail "the agent ended: $(cat $disk/agent.log)"
        tries=$((tries + 1))
        test $tries -lt $((10 * VIADUCT_TEST_PATIENCE)) || fail "the agent does not serve: $(cat $disk/agent.log)"
        sleep 1
    done
}

# $1: the pod, $2: its hostport.
add() {
    ip netns add "$1"
    result=$(attach "$1" "$2") || fail "ADD of $1: $result"
    case $result in *'"address"'*) ;; *) fail "ADD of $1 has no address: $result" ;; esac
    echo "$1: $(ip -n "$1" -brief address show eth0 | tr -s ' ')"
}

attach() {
    CNI_COMMAND=ADD CNI_CONTAINERID=$1 CNI_NETNS=/run/netns/$1 CNI_IFNAME=eth0 CNI_PATH=$VIADUCT_DIST/cni \
        "$VIADUCT_DIST/cni/viaduct" << JSON
{"cniVersion": "1.0.0", "name": "viaduct", "type": "viaduct", "runtimeConfig": {"portMappings":
    [{"hostPort": $2, "containerPort": 80, "protocol": "tcp"}]}}
JSON
}

# Attachments, leases and hostports of three pods are on record, each once.
has_three_pods() {
    count "$(ctl list --json)" '"containerID"'
    count "$(get leases)" '"10\.244\.1\.[0-9]*'
    count "$(ctl ports --json)" '"host_port"'
}
count() {
    test "$(printf %s "$1" | grep -o "$2" | wc -l)" = 3 || fail "not three of $2: $1"
}

# An uplink, and a machine behind it.
make_node() {
    ip netns add world
    ip link add up0 type veth peer name eth0 netns world
    ip address add 192.0.2.1/24 dev up0
    ip link set up0 up
    ip -n world address add 192.0.2.2/24 dev eth0
    ip -n world link set eth0 up
    ip route add default via 192.0.2.2
    mkdir -p /run/viaduct
}

# Images of other kernels may have both built in.
modprobe -a virtio_blk ext4 || :
tries=0
until [ -b /dev/vda ]; do
    tries=$((tries + 1))
    test $tries -lt $((10 * VIADUCT_TEST_PATIENCE)) || fail "no disk"
    sleep 1
done
mkdir -p $disk
mount -t ext4 /dev/vda $disk || fail "the disk cannot be mounted"
make_node
if [ ! -e $disk/boot ]; then
    echo "boot 1: $boot_id"
    echo "$boot_id" > $disk/boot
    start_agent
    for number in 1 2 3; do add pod-$number 808$number; done
    has_three_pods
    touch $disk/reset
    sync
    echo "the machine is reset with 3 pods and a running agent"
    sleep 1
    busybox reboot -f
    sleep 600
    fail "it was not reset"
fi

test -e $disk/reset || fail "it crashed in the first boot"
test "$(wc -l < $disk/boot)" = 1 || fail "it was reset more than once"
echo "boot 2: $boot_id"
test "$boot_id" != "$(cat $disk/boot)" || fail "the boot is the same"
echo "$boot_id" >> $disk/boot
test -s $disk/viaduct/records.redb || fail "no records on the disk: $(ls -R $disk)"
test ! -e $bpffs || fail "pins before the agent: $(find $bpffs)"
start_agent
count "$(ctl events --json)" 'it was made before the last reboot'
echo 'the records of all three pods are released as those of another boot'
is_empty attachments "$(ctl list --json)"
is_empty leases "$(get leases)"
is_empty hostports "$(ctl ports --json)"
maps=$(echo $bpffs/v*/maps)
is_empty 'rows for hostports' "$(bpftool -j map dump pinned "$maps/HOSTPORTS")"
links=$(find $bpffs -path '*/links/*' ! -name 'cgroup-*' -printf '%f\n')
uplink=$(cat /sys/class/net/up0/ifindex)
for link in $links; do
    test "${link%%-*}" = "$uplink" || fail "a pin of the boot before: $link in $links"
done
echo "no pinned link but the uplink's"
for number in 1 2 3; do
    add pod-$number 808$number
done
ip netns exec pod-1 ping -q -c 1 -W 60 192.0.2.2 > /dev/null || fail "a new pod does not reach the world"
has_three_pods
echo "three pods are attached again"
