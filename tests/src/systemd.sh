# Boots systemd in namespaces of its own. $1: its cgroup, $2: the distribution.
#
# systemd deletes temporary files and sets sysctls when it boots. So the container sees no writable
# file system of this machine: its root is an overlay in memory, and pivot_root takes the old root away.
set -eu
echo 0 > "$1/cgroup.procs"
export dist="$2"
exec unshare --mount --propagation private --pid --fork --kill-child --ipc --uts --cgroup sh -c '
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/upper /run/work /run/root
root=/run/root
mount -t overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work overlay $root
for path in run tmp opt var/tmp var/log var/lib/systemd etc/systemd/system etc/cni dev; do
    mkdir -p $root/$path
    mount -t tmpfs -o mode=755 tmpfs $root/$path
done
chmod 1777 $root/tmp $root/var/tmp
mount -t proc proc $root/proc
mount --bind $root/proc/sys $root/proc/sys
mount --bind $root/proc/sys/net $root/proc/sys/net
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
mount -t bpf -o mode=700 bpf $root/sys/fs/bpf
mkdir -p $root/srv/viaduct/target/dist
mount --bind "$dist" $root/srv/viaduct/target/dist
mount -o remount,bind,ro $root/srv/viaduct/target/dist
# What else is built beside the distribution: packages, the agent of upgrade tests, and kube-proxy.
for name in package dist-next tools/kubernetes; do
    if [ -d "${dist%/*}/$name" ]; then
        mkdir -p $root/srv/viaduct/target/$name
        mount --bind "${dist%/*}/$name" $root/srv/viaduct/target/$name
        mount -o remount,bind,ro $root/srv/viaduct/target/$name
    fi
done
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 $root/dev/${device%:*} c 1 ${device#*:}
done
mknod -m 666 $root/dev/tty c 5 0
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts $root/dev/pts
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
for unit in dbus.service dbus.socket systemd-logind.service systemd-modules-load.service systemd-sysctl.service \
    systemd-remount-fs.service systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service \
    systemd-tmpfiles-clean.timer systemd-udevd.service systemd-udev-trigger.service systemd-binfmt.service \
    systemd-update-utmp.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount getty.target apt-daily.timer \
    apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer logrotate.timer man-db.timer; do
    ln -s /dev/null $root/etc/systemd/system/$unit
done
: > $root/etc/machine-id
: > $root/etc/fstab
mkdir $root/run/old $root/run/netns
cd $root
pivot_root . run/old
umount -l run/old
rmdir run/old
# As systemd does on a machine, so that units with mounts of their own receive later ones.
mount --make-rshared /
export container=viaduct-test
exec env -u dist /lib/systemd/systemd --system --log-target=console --log-level=notice --show-status=0
'
