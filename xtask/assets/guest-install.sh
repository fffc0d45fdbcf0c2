# Runs in a guest with a fresh distribution and systemd: installs the packages of /srv/packages, attaches containers of podman and
# containerd with published ports and limits, upgrades under traffic, purges, and compares the node with what it was before.
# Needs $PODMAN, `cni` or `netavark`: how podman of this release makes networks.
set -eu
export DEBIAN_FRONTEND=noninteractive
packages=/srv/packages

fail() {
    echo "FAILED: $*" >&2
    journalctl --no-pager --quiet --unit viaductd --unit containerd --lines 30 >&2
    exit 1
}
say() { echo "· $*"; }

# Waits until a command succeeds. $1: what it waits for.
await() {
    what=$1
    shift
    tries=0
    until "$@" > /tmp/awaited 2>&1; do
        tries=$((tries + 1))
        test $tries -lt 600 || fail "$what: $(cat /tmp/awaited)"
        sleep 0.5
    done
}

# What a package could leave behind: files, users, links, rules, programs. What the package manager, systemd and the
# container runtimes write for themselves is none of it.
node() {
    find /etc /opt /run /sys/fs/bpf /usr /var/lib -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \
        -o -path /var/lib/containers -o -path /var/lib/containerd -o -path /var/lib/cni -o -path /run/cni \
        -o -path /run/systemd -o -path /run/containers -o -path /run/containerd -o -path /run/crun -o -path /run/runc \
        -o -path /run/libpod -o -path /run/netns -o -path /run/lock -o -path /run/udev -o -path /run/user \
        -o -name 'xtables.lock' \) -prune -o -print | sort
    sha256sum /usr/lib/cni/* 2> /dev/null || true
    getent passwd
    getent group
    ip -o link | cut -d: -f2
    nft list ruleset
    ip route
}

world() { ip netns exec world "$@"; }
fetch() { world curl --silent --show-error --max-time 120 --retry 60 --retry-connrefused --retry-delay 1 "http://192.0.2.1:$1"; }
serves() { test "$(fetch "$1/")" = hello || fail "port $1 of the node serves something else"; }

# One call of containerd's CRI. Debian has no crictl, and three messages are short enough to be written as bytes. $1: the
# method, $2: the length of the message as an octal escape; the message is read from standard input.
cri() {
    { printf "\\0\\0\\0\\0\\$2"; cat; } | curl --silent --show-error --http2-prior-knowledge --data-binary @- \
        --unix-socket /run/containerd/containerd.sock --header 'content-type: application/grpc' --header 'te: trailers' \
        --dump-header /tmp/cri-head "http://localhost/runtime.v1.RuntimeService/$1"
    grep -q 'grpc-status: 0' /tmp/cri-head || fail "$1: $(cat /tmp/cri-head)"
}

say "Linux $(uname -r), $(. /etc/os-release; echo "$PRETTY_NAME"), $(podman --version), $(containerd --version | cut -d' ' -f3)"
for place in /var/lib/containers /var/lib/containerd /var/tmp; do mount -t tmpfs guest $place; done
ip netns add world
ip link add uplink type veth peer name eth0 netns world
ip address add 192.0.2.1/24 dev uplink
ip link set uplink up
ip route add default via 192.0.2.2
ip -n world address add 192.0.2.2/24 dev eth0
ip -n world link set eth0 up
ip -n world link set lo up

[ -e /etc/hosts ] || echo '127.0.0.1 localhost' > /etc/hosts

# An image without a registry: a server on port 80.
# podman makes and keeps the directory of its networks.
mkdir -p /etc/containers/containers.conf.d /etc/containers/networks /var/tmp/image/bin /var/tmp/image/www
# The files of the guest are an overlay, which cannot hold another one.
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' > /etc/containers/storage.conf
cp "$(command -v busybox)" /var/tmp/image/bin/busybox
for applet in httpd sh sleep; do ln -s busybox /var/tmp/image/bin/$applet; done
echo hello > /var/tmp/image/www/index.html
head -c 4000000 /dev/urandom > /var/tmp/image/www/large
tar -C /var/tmp/image -cf /var/tmp/image.tar .
podman import --quiet --change 'CMD ["/bin/httpd","-f","-p","80","-h","/www"]' /var/tmp/image.tar localhost/web > /dev/null
podman save --quiet --output /var/tmp/web.tar localhost/web
mkdir -p /etc/containerd /etc/cni/net.d
cat > /etc/containerd/config.toml <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/web:latest"
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
END
printf '[network]\nnetwork_backend = "%s"\n' "$PODMAN" > /etc/containers/containers.conf.d/backend.conf
printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' > /etc/containers/containers.conf.d/engine.conf
systemctl restart containerd
await 'containerd serves' ctr version
ctr --namespace k8s.io images import --snapshotter native /var/tmp/web.tar > /dev/null
node > /tmp/before

apt-get install --yes "$packages"/viaduct_*.deb "$packages"/viaduct-plugins_*.deb
systemctl is-active --quiet viaductd || fail "the package starts no agent"
say "$(viaductctl version | head -n 1)"
cp /usr/share/viaduct/05-viaduct.conflist /etc/cni/net.d/

network=viaduct
if [ "$PODMAN" = netavark ]; then
    network=pods
    podman network create --driver viaduct $network > /dev/null
fi
podman run --detach --name web --network $network --publish 8080:80 localhost/web > /dev/null
serves 8080
say "podman: a container with a published port ($PODMAN)"
web=$(podman ps --quiet --no-trunc --filter name=web)
viaductctl limit "$web" --egress 50M --ingress 50M > /dev/null

# RunPodSandbox of `shop` in `default`: port 80 is published as 8081.
printf '\012\063\012\025\012\004shop\022\004shop\032\007default\022\004shop\032\015/var/tmp/logs\052\005\020\120\030\221\077' |
    cri RunPodSandbox 065 > /tmp/sandbox
shop=$(grep --text --only-matching '[0-9a-f]\{64\}' /tmp/sandbox)
serves 8081
viaductctl limit "$shop" --egress 50M --ingress 50M > /dev/null
viaductctl list
test "$(viaductctl list --no-headers | wc -l)" = 2 || fail "not two attachments"
say "containerd: a pod with a published port"

# A long download from the world through each port, and short requests, while the agent is replaced.
for port in 8080 8081; do
    world curl --silent --show-error --max-time 3000 --limit-rate 40k --output /tmp/large-$port "http://192.0.2.1:$port/large" &
done
downloads=$(jobs -p)
(
    count=0
    until [ -e /tmp/upgraded ]; do
        world curl --silent --show-error --max-time 300 http://192.0.2.1:8080/ > /tmp/answer || echo "request $count" >> /tmp/lost
        count=$((count + 1))
        echo $count > /tmp/count
    done
) &
requests=$!
await 'requests are answered' test -s /tmp/count
before=$(cat /tmp/count)
agent=$(systemctl show --value --property MainPID viaductd)
for package in viaduct viaduct-plugins; do
    dpkg-deb --raw-extract "$packages"/${package}_*.deb /tmp/$package
    sed -i -e 's/^Version: .*/Version: 9.9/' -e 's/viaduct (= [^)]*)/viaduct (= 9.9)/' /tmp/$package/DEBIAN/control
done
cp "$packages"/next/viaductd /tmp/viaduct/usr/bin/
cp "$packages"/next/datapath.o /tmp/viaduct/usr/lib/viaduct/
for package in viaduct viaduct-plugins; do dpkg-deb --root-owner-group -Znone --build /tmp/$package /tmp/$package.deb; done
apt-get install --yes /tmp/viaduct.deb /tmp/viaduct-plugins.deb
test "$(systemctl show --value --property MainPID viaductd)" != "$agent" || fail "the upgrade restarts no agent"
viaductctl version | grep -q '+next' || fail "not the next release: $(viaductctl version)"
serves 8080
touch /tmp/upgraded
wait $requests
test "$(cat /tmp/count)" -gt "$before" || fail "no requests during the upgrade"
test ! -s /tmp/lost || fail "lost: $(cat /tmp/lost)"
for download in $downloads; do wait "$download" || fail "a download ended"; done
for port in 8080 8081; do cmp /tmp/large-$port /var/tmp/image/www/large || fail "port $port: other bytes"; done
say "upgrade: $(cat /tmp/count) requests and two downloads, none lost"

podman rm --force --time 0 web > /dev/null
[ "$PODMAN" = cni ] || podman network rm $network > /dev/null
printf '\012\100%s' "$shop" | cri StopPodSandbox 102 > /dev/null
printf '\012\100%s' "$shop" | cri RemovePodSandbox 102 > /dev/null
test -z "$(viaductctl list --no-headers)" || fail "attachments are left: $(viaductctl list)"
rm /etc/cni/net.d/05-viaduct.conflist
apt-get purge --yes viaduct viaduct-plugins
node > /tmp/after
diff /tmp/before /tmp/after > /tmp/left || fail "the purge leaves: $(cat /tmp/left)"
say "purge: nothing is left"
