#!/bin/busybox sh
# The first program of a guest: brings the host's files in, read-only below a layer of memory, and hands over.
# /plan/modules-first lists modules in order of need, /plan/modules says where the rest lies on the host,
# /plan/script is what to run then.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devices /dev
while read -r module; do $b insmod "/plan/$module" || echo "cannot load $module"; done < /plan/modules-first

r=/root
$b mount -t virtiofs -o ro host /host && $b mount -t tmpfs layer /layer && $b mkdir /layer/upper /layer/work &&
    $b mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root $r || {
    echo "the host's files are not to be had"
    $b poweroff -f
}
for pair in proc:proc sysfs:sys devtmpfs:dev tmpfs:run tmpfs:tmp cgroup2:sys/fs/cgroup bpf:sys/fs/bpf; do
    $b mount -t "${pair%%:*}" guest "$r/${pair#*:}"
done
$b mkdir -p $r/dev/pts $r/dev/shm
$b mount -t devpts guest $r/dev/pts
$b mount -t tmpfs guest $r/dev/shm
# The kernel asks for modules by this program. That of the files may be a link, and needs an index that is not there.
$b rm -f $r/usr/sbin/modprobe
$b cp /bin/busybox $r/usr/sbin/modprobe
if [ -s /plan/modules ]; then
    folder=$r/lib/modules/$($b uname -r)
    $b mkdir -p "$folder"
    $b mount --bind "$r$($b cat /plan/modules)" "$folder"
fi
$b cp /plan/script $r/run/script
exec $b switch_root $r /bin/sh /run/script
