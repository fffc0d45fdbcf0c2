//! Guests: virtual machines that boot a kernel, run one script and power off.
//!
//! A guest with a disk may also reset itself: its next boot runs the same script again, with the
//! files on the disk.
//!
//! The root file system is the host's, shared read-only by virtiofs, with an overlay in memory for
//! writes. Programs and tests lie at the same paths as on the host, and nothing is copied. Packages
//! are installed on a root of their own. A guest has no network but what its script creates.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::kernel::Kernel;
use crate::{command, privilege, project};

const INIT: &str = include_str!("../../assets/guest-init.sh");

/// Prefix of the script's last line, before its exit status. A guest that ends without it has
/// crashed.
const END: &str = "the guest ends with ";

/// Number of guests that this process started: names their folders.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// In the console of a kernel that has found a breakpoint of its own where it had removed it: under
/// TCG, a processor may run the old code for a moment. Others have seen it on unchanged kernels
/// (<https://github.com/multipath-tcp/mptcp_net-next/issues/471>).
const EMULATOR_FAULT: &str = "int3: 0000";
/// Lines of the console that are shown of a crashed guest.
const CONSOLE_LINES: usize = 60;

/// How QEMU executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// By the processor (KVM).
    Kvm,
    /// By translation (TCG), about ten times slower.
    Tcg,
}

impl Accelerator {
    /// Factor for all deadlines of tests.
    pub(crate) fn patience(self) -> u32 {
        match self {
            Self::Kvm => 2,
            Self::Tcg => 24,
        }
    }

    /// Environment variables of the tests. Under translation, one test at a time and fewer
    /// repetitions: two tests at once only delay each other, and 500 random node histories, or
    /// agent crashes at both the first and the last effect of each step, take as long as fifty
    /// other tests.
    pub(super) fn variables(self) -> String {
        let rest = match self {
            Self::Kvm => "RUST_TEST_THREADS=2",
            Self::Tcg => "RUST_TEST_THREADS=1 VIADUCT_LIVES=100 VIADUCT_CRASH_POINTS=first",
        };
        format!("VIADUCT_TEST_PATIENCE={} {rest}", self.patience())
    }

    /// Number of guests that share the tests of a kernel. A translated guest idles for much of its
    /// time.
    pub(crate) fn guests(self) -> usize {
        match self {
            Self::Kvm => 1,
            Self::Tcg => 2 * thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// QEMU's processor model. Under translation, `rep movsb` copies and saving vector registers at
    /// each task switch take nearly half of the time; kernels avoid both where the processor does
    /// not offer them.
    fn processor(self) -> &'static str {
        match self {
            Self::Kvm => "max",
            Self::Tcg => "max,-erms,-xsave",
        }
    }

    /// Name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG (slow: no KVM that works)",
        }
    }
}

/// The configuration of a guest.
pub(crate) struct Guest<'a> {
    /// The kernel to boot.
    pub(crate) kernel: &'a Kernel,
    /// How instructions are executed.
    pub(crate) accelerator: Accelerator,
    /// Number of processors.
    pub(crate) cpus: u32,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Time after which it is killed.
    pub(crate) limit: Duration,
    /// Network cards.
    pub(crate) cards: Vec<Card>,
    /// The first program.
    pub(crate) boot: Boot,
    /// Image of a disk, `/dev/vda`. A guest with a disk reboots where others end, also after a
    /// crash.
    pub(crate) disk: Option<PathBuf>,
}

/// What runs as the first program of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boot {
    /// The script.
    Script,
    /// systemd of the guest's files, with the script as a service.
    Systemd,
}

/// A network card of a guest.
pub(crate) struct Card {
    /// The socket of the switch that it is plugged into.
    pub(crate) switch: PathBuf,
    /// MAC address.
    pub(crate) mac: String,
}

impl<'a> Guest<'a> {
    /// Returns a guest without network cards, for tests.
    pub(crate) fn alone(kernel: &'a Kernel, accelerator: Accelerator, limit: Duration) -> Self {
        Self {
            kernel,
            accelerator,
            cpus: 2,
            memory: super::MEMORY,
            limit,
            cards: Vec::new(),
            boot: Boot::Script,
            disk: None,
        }
    }

    /// Runs `script` in the guest, each line that it prints through `each`, and returns its exit
    /// status. A guest that crashes or does not end is a failure that shows its console.
    pub(crate) fn run(&self, script: &str, mut each: impl FnMut(&str)) -> Result<i32> {
        let folder = folder()?;
        let ended = self.run_in(&folder, script, &mut each);
        let console = fs::read(folder.join("console.log")).unwrap_or_default();
        let ended = ended.with_context(|| described(&String::from_utf8_lossy(&console)));
        fs::remove_dir_all(&folder)?;
        ended.with_context(|| format!("the guest with kernel {}", self.kernel.name))
    }

    fn run_in(&self, folder: &Path, script: &str, each: &mut impl FnMut(&str)) -> Result<i32> {
        let initrd = pack(self.kernel, folder, &self.wrapped(script))?;
        let socket = folder.join("files.sock");
        let _files = share(&self.kernel.files, &socket, folder)?;
        let mut machine = Running(self.start(folder, &initrd, &socket)?);
        let printed = machine
            .0
            .stdout
            .take()
            .context("standard output is piped")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(printed).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line);
                if sender.send(text.trim_end_matches('\r').to_owned()).is_err() {
                    break;
                }
            }
        });
        self.watch(&lines, each)
    }

    /// Wraps the script so that its output goes to the second serial port: kernel messages stay on
    /// the first. The output is piped, so that programs see no terminal and print plain lines.
    fn wrapped(&self, script: &str) -> String {
        let wrapped = format!(
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C\n\
             ip link set lo up\n{{\n(\n{script}\n) 2>&1\nstatus=$?\necho\necho \"{END}$status\"\n}} | cat > /dev/ttyS1\n\
             sync\nexec busybox poweroff -f\n"
        );
        match self.boot {
            Boot::Script => format!("cd {}\n{wrapped}", project::root().display()),
            Boot::Systemd => under_systemd(&wrapped),
        }
    }

    fn watch(&self, lines: &Receiver<String>, each: &mut impl FnMut(&str)) -> Result<i32> {
        let started = Instant::now();
        loop {
            let left = self.limit.saturating_sub(started.elapsed());
            match lines.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(END) {
                    Some(status) => return Ok(status.trim().parse()?),
                    None => each(&line),
                },
                Err(RecvTimeoutError::Timeout) => bail!("it has not ended within {:?}", self.limit),
                Err(RecvTimeoutError::Disconnected) => bail!("it crashed"),
            }
        }
    }

    fn start(&self, folder: &Path, initrd: &Path, socket: &Path) -> Result<Child> {
        let accelerator = match self.accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
        };
        let memory = self.memory;
        let mut qemu = privilege::as_root("qemu-system-x86_64")?;
        qemu.args(["-accel", accelerator, "-cpu", self.accelerator.processor()])
            .args(["-smp", &self.cpus.to_string()])
            .args(["-m", &memory.to_string()])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=memory,size={memory}M,share=on"
            ))
            .args(["-numa", "node,memdev=memory", "-nic", "none"])
            .args(["-display", "none", "-monitor", "none"])
            .arg("-serial")
            .arg(format!("file:{}", folder.join("console.log").display()))
            .args(["-serial", "stdio"])
            .arg("-chardev")
            .arg(format!("socket,id=files,path={}", socket.display()))
            .args(["-device", "vhost-user-fs-pci,chardev=files,tag=host"])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initrd)
            // After an oops the kernel must panic and the guest must end.
            .args([
                "-append",
                "console=ttyS0 panic=-1 oops=panic no_timer_check mitigations=off",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join("qemu.log"))?);
        match &self.disk {
            Some(disk) => {
                let disk = disk.display();
                qemu.args(["-drive", &format!("file={disk},format=raw,if=virtio")])
            }
            None => qemu.arg("-no-reboot"),
        };
        for (number, card) in self.cards.iter().enumerate() {
            let (switch, mac) = (card.switch.display(), &card.mac);
            let wire =
                format!("stream,id=wire{number},server=off,addr.type=unix,addr.path={switch}");
            let card = format!("virtio-net-pci,netdev=wire{number},mac={mac}");
            qemu.args(["-netdev", &wire, "-device", &card]);
        }
        qemu.spawn()
            .with_context(|| format!("cannot start {}", command::shown(&qemu)))
    }
}

/// Creates a folder for the files of one guest.
pub(super) fn folder() -> Result<PathBuf> {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}-{number}", std::process::id());
    let folder = project::target().join("vm/run").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A child process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts virtiofsd, which shares the files of a guest.
fn share(files: &Path, socket: &Path, folder: &Path) -> Result<Running> {
    const PLACES: [&str; 3] = [
        "virtiofsd",
        "/usr/lib/qemu/virtiofsd",
        "/usr/libexec/virtiofsd",
    ];
    let server = PLACES
        .iter()
        .find_map(|place| privilege::find(place))
        .context("there is no virtiofsd")?;
    let log = File::create(folder.join("files.log"))?;
    let mut command = privilege::as_root(server)?;
    command
        .arg(format!("--socket-path={}", socket.display()))
        .args([
            "-o",
            &format!("source={}", files.display()),
            "-o",
            "sandbox=chroot",
            "-o",
            "cache=always",
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut server = Running(command.spawn().context("cannot start virtiofsd")?);
    let started = Instant::now();
    while !socket.exists() {
        if server.0.try_wait()?.is_some() || started.elapsed() > Duration::from_secs(10) {
            bail!(
                "virtiofsd does not serve; {}",
                folder.join("files.log").display()
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

/// Packs the initial RAM disk.
fn pack(kernel: &Kernel, folder: &Path, script: &str) -> Result<PathBuf> {
    let root = folder.join("initrd");
    for name in ["bin", "proc", "sys", "dev", "host", "layer", "root", "plan"] {
        fs::create_dir_all(root.join(name))?;
    }
    let busybox = privilege::find("busybox").context("there is no busybox")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let plan = root.join("plan");
    let mut first = String::new();
    for module in kernel.first_modules()? {
        let name = module.file_name().unwrap_or_default();
        fs::copy(&module, plan.join(name))?;
        first.push_str(&name.to_string_lossy());
        first.push('\n');
    }
    fs::write(plan.join("modules-first"), first)?;
    // As the guest sees them.
    let seen = |path: &PathBuf| {
        let path = path.strip_prefix(&kernel.files).unwrap_or(path);
        Path::new("/").join(path).display().to_string()
    };
    let modules = kernel.modules.as_ref().map(seen);
    fs::write(plan.join("modules"), modules.unwrap_or_default())?;
    fs::write(plan.join("script"), script)?;
    let archive = folder.join("initrd.cpio");
    let mut pack = Command::new("sh");
    pack.args(["-c", "find . | busybox cpio -o -H newc > \"$1\"", "sh"])
        .arg(&archive)
        .current_dir(&root);
    command::output(&mut pack)?;
    Ok(archive)
}

/// Returns the script that makes `script` a service, which ends the guest, and starts systemd.
/// `/run` stays as it is.
fn under_systemd(script: &str) -> String {
    format!(
        "mkdir -p /run/systemd/system/multi-user.target.wants\n\
         cat > /run/service <<'END_OF_SCRIPT'\n{script}END_OF_SCRIPT\n\
         cat > /run/systemd/system/guest.service <<'END_OF_UNIT'\n\
         [Service]\nType=exec\nExecStart=/bin/sh /run/service\nTimeoutStartSec=infinity\nEND_OF_UNIT\n\
         ln -s ../guest.service /run/systemd/system/multi-user.target.wants/\n\
         exec /lib/systemd/systemd\n"
    )
}

/// Returns the end of a console, and what is known of its cause.
fn described(console: &str) -> String {
    let lines: Vec<&str> = console.lines().map(str::trim_end).collect();
    let end = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
    let cause = if console.contains(EMULATOR_FAULT) {
        "\nThis is a fault of the emulator, which ran code of the kernel while another processor \
         changed it. `--again --staged` runs what is missing"
    } else {
        ""
    };
    format!("its console ended with:\n{end}{cause}")
}
