//! Third-party container runtimes inside a sandbox: podman, and containerd with `ctr` and by CRI.
//!
//! Images contain busybox, state is below the sandbox's `/run`, and the test chooses plugins and
//! network configurations. Containers run without cgroups, so those of the machine stay unchanged.

use std::fmt::Write as _;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{Agent, Machine, NODE, Process, Sandbox, until};

/// The only image: a web server on port 80 that answers `ok`. It has the name of containerd's
/// default pause image.
pub const IMAGE: &str = "registry.k8s.io/pause:3.6";

/// The folder of networks' configurations.
pub const NETS: &str = "/run/nets";
/// Environment of podman, and its options.
const SETTINGS: &str = "env CONTAINERS_CONF=/run/containers.conf";
const OPTIONS: &str = "--root /run/podman/root --runroot /run/podman/run --storage-driver vfs";
const SOCKET: &str = "/run/containerd.sock";
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 6] = ["httpd", "ip", "ping", "sh", "sleep", "wget"];

/// podman 4 with its CNI backend, or podman 5, which has netavark.
#[derive(Debug)]
pub struct Podman {
    node: Machine,
    /// podman with its options, for a shell.
    command: String,
    /// `cgroup.procs` of the cgroup in which podman and its containers run; `None` for that of the
    /// test.
    cgroup: Option<File>,
}

impl Podman {
    /// Configures podman with the plugins in `folder` and `network` as the only network, and
    /// imports the image.
    pub fn new(node: &Machine, folder: &Path, network: &Value) -> Result<Self> {
        put(node, &format!("{NETS}/10.conflist"), &network.to_string())?;
        let name = network["name"].as_str().context("a network has a name")?;
        let settings = format!(
            "network_backend = \"cni\"\ncni_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{NETS}\"\n\
             default_network = \"{name}\"\n",
            folder.display()
        );
        let command = format!("{SETTINGS} podman {OPTIONS}");
        Self::with_networks(node, &settings, command)
    }

    /// Configures podman 5, unpacked in `root`, with the netavark plugins in `folder`, and imports
    /// the image. It has no network yet but its default.
    ///
    /// It runs with the libraries in `root`, in a mount namespace of its own for each call. What it
    /// mounts below `/run` is also mounted in the sandbox, such as network namespaces.
    pub fn with_netavark(node: &Machine, root: &Path, folder: &Path) -> Result<Self> {
        node.call("mount --make-shared /run")?;
        let settings = format!(
            "network_backend = \"netavark\"\nnetavark_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"{NETS}\"\n",
            folder.display()
        );
        let root = root.display();
        let command = format!(
            "{SETTINGS} unshare --mount --propagation unchanged sh -c '\
             mount --bind {root}/etc/containers /etc/containers && mount --bind {root}/usr /usr && \
             exec podman {OPTIONS} \"$@\"' podman"
        );
        Self::with_networks(node, &settings, command)
    }

    /// Configures podman with these settings of networks, and imports the image.
    fn with_networks(node: &Machine, networks: &str, command: String) -> Result<Self> {
        let settings = format!(
            "[network]\n{networks}\
             [engine]\nruntime = \"crun\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
             [containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\nlog_driver = \"k8s-file\"\n"
        );
        put(node, "/run/containers.conf", &settings)?;
        let podman = Self {
            node: node.clone(),
            command,
            cgroup: None,
        };
        podman.make_image()?;
        Ok(podman)
    }

    /// Moves podman and the containers that it starts into a cgroup, as the node's processes are
    /// below the agent's.
    pub fn in_cgroup(mut self, cgroup: &Path) -> Result<Self> {
        // Open, because a mount of the sandbox may hide its path.
        self.cgroup = Some(
            File::options()
                .write(true)
                .open(cgroup.join("cgroup.procs"))?,
        );
        Ok(self)
    }

    /// Runs podman with the arguments in `line`, and returns its output.
    pub fn call(&self, line: &str) -> Result<String> {
        self.shell(&format!("{} {line}", self.command))
    }

    /// Runs a shell script in which `{podman}` stands for podman with its options.
    pub fn script(&self, script: &str) -> Result<String> {
        self.shell(&script.replace("{podman}", &self.command))
    }

    fn shell(&self, script: &str) -> Result<String> {
        let enter = self.cgroup.as_ref().map_or_else(String::new, |cgroup| {
            let (pid, procs) = (std::process::id(), cgroup.as_raw_fd());
            format!("echo 0 > /proc/{pid}/fd/{procs} && ")
        });
        self.node
            .call_words(&["sh", "-c", &format!("{enter}{script}")])
    }

    /// Starts the web server in a container of this name, with additional podman flags.
    pub fn run(&self, name: &str, flags: &str) -> Result<()> {
        unified_cgroups(&self.node)?;
        self.call(&format!(
            "run --detach --cgroups=disabled --name {name} {flags} {IMAGE}"
        ))
        .map(drop)
    }

    /// Removes all containers.
    pub fn remove_all(&self) -> Result<()> {
        // podman fails while a mount namespace that another test has made holds its shm mount.
        let mut failures = String::new();
        until("podman removes all containers", || {
            let removed = self.call("rm --force --time 0 --all");
            let noted = removed.map_err(|error| writeln!(failures, "{error:#}"));
            Ok(noted.ok())
        })
        .map(drop)
        .with_context(|| failures.clone())
    }

    /// Restarts an agent, whose cgroup may be hidden by the mount that podman needs.
    pub fn restart_agent(&self, agent: &mut Agent) -> Result<()> {
        let cgroup = agent.cgroup().context("there is no cgroup2")?.to_owned();
        let is_hidden = self.node.run(|| !cgroup.exists());
        if is_hidden {
            self.node.call("umount /sys/fs/cgroup")?;
        }
        agent.restart()?;
        if is_hidden {
            unified_cgroups(&self.node)?;
        }
        Ok(())
    }

    fn make_image(&self) -> Result<()> {
        let root = "/run/image/root";
        self.node.call(&format!("mkdir -p {root}/bin {root}/www"))?;
        self.node
            .call(&format!("cp {BUSYBOX} {root}/bin/busybox"))?;
        for applet in APPLETS {
            self.node
                .call(&format!("ln -s busybox {root}/bin/{applet}"))?;
        }
        put(&self.node, "/run/image/root/www/index.html", "ok")?;
        self.node
            .call(&format!("tar -C {root} -cf /run/image/root.tar ."))?;
        let change = r#"CMD ["/bin/httpd","-f","-p","80","-h","/www"]"#;
        let line = format!("import --quiet --change '{change}' /run/image/root.tar {IMAGE}");
        self.call(&line).map(drop)
    }
}

/// Waits until the web server of a container answers `from` at this address.
pub fn await_page(from: &Machine, address: SocketAddr) -> Result<()> {
    let line = format!("curl --silent --show-error --max-time 2 http://{address}/");
    let page = until("the page is served", || Ok(from.call(&line).ok()));
    ensure!(page.with_context(|| format!("from {address}"))? == "ok");
    Ok(())
}

/// Waits until the web server of a container is reached from the world by a port of the node, in
/// both families.
pub fn await_pages(sandbox: &Sandbox, port: u16) -> Result<()> {
    let mut nodes = NODE.into_iter();
    nodes.try_for_each(|node| await_page(&sandbox.world, SocketAddr::new(node, port)))
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _gone = self.call("rm --force --time 0 --all");
    }
}

/// A containerd process. Dropping it removes all pods and containers.
#[derive(Debug)]
pub struct Containerd {
    node: Machine,
    _process: Process,
}

impl Containerd {
    /// Starts a containerd whose CRI has the plugins in `folder` and the network of `podman`. The
    /// image is copied from `podman`.
    pub fn start(podman: &Podman, folder: &Path) -> Result<Self> {
        let node = &podman.node;
        let settings = format!(
            "version = 2\nroot = \"/run/containerd/root\"\nstate = \"/run/containerd/state\"\n\
             [grpc]\naddress = \"{SOCKET}\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\ndisable_cgroup = true\n\
             disable_apparmor = true\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{}\"\nconf_dir = \"{NETS}\"\n",
            folder.display()
        );
        put(node, "/run/containerd.toml", &settings)?;
        let process = Process::start(node, &["containerd", "--config", "/run/containerd.toml"])?;
        let containerd = Self {
            node: node.clone(),
            _process: process,
        };
        until("containerd answers", || Ok(containerd.ctr("version").ok()))?;
        podman.call(&format!("save --quiet --output /run/image.tar {IMAGE}"))?;
        for namespace in ["k8s.io", "default"] {
            containerd.ctr(&format!(
                "--namespace {namespace} images import --snapshotter native /run/image.tar"
            ))?;
        }
        Ok(containerd)
    }

    /// Runs `ctr` with the arguments in `line`, and returns its output.
    pub fn ctr(&self, line: &str) -> Result<String> {
        self.node.call(&format!("ctr --address {SOCKET} {line}"))
    }

    /// Calls CRI `RunPodSandbox`; returns the ID of the sandbox. `ports` are TCP mappings, each the
    /// node's port and the pod's.
    pub fn run_pod(&self, name: &str, ports: &[(u16, u16)]) -> Result<String> {
        let mut config = text(
            1,
            [text(1, name), text(2, name), text(3, "default")].concat(),
        );
        config.extend(text(2, name));
        config.extend(text(3, "/run/containerd/logs"));
        for (host, container) in ports {
            let port = [
                number(2, u64::from(*container)),
                number(3, u64::from(*host)),
            ]
            .concat();
            config.extend(text(5, &port));
        }
        let answer = self.cri("RunPodSandbox", &text(1, &config))?;
        let id = strings(&answer).next().context("no ID in the response")?;
        Ok(String::from_utf8(id.to_vec())?)
    }

    /// Calls CRI `PodSandboxStatus`; returns the undecoded response, in which a test can search for
    /// addresses.
    pub fn pod_status(&self, id: &str) -> Result<String> {
        let answer = self.cri("PodSandboxStatus", &text(1, id))?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Calls CRI `StopPodSandbox` and `RemovePodSandbox`.
    pub fn remove_pod(&self, id: &str) -> Result<()> {
        self.cri("StopPodSandbox", &text(1, id))?;
        self.cri("RemovePodSandbox", &text(1, id)).map(drop)
    }

    /// Makes one gRPC call over HTTP/2. A message follows a byte of flags and its length in 4
    /// bytes, big-endian.
    fn cri(&self, method: &str, message: &[u8]) -> Result<Vec<u8>> {
        let mut request = vec![0];
        request.extend(u32::try_from(message.len())?.to_be_bytes());
        request.extend(message);
        self.node
            .run(|| std::fs::write("/run/cri.request", &request))?;
        self.node.call(&format!(
            "curl --silent --show-error --http2-prior-knowledge --unix-socket {SOCKET} --max-time 60 \
             --header content-type:application/grpc --header te:trailers --data-binary @/run/cri.request \
             --dump-header /run/cri.head --output /run/cri.answer http://localhost/runtime.v1.RuntimeService/{method}"
        ))?;
        let head = self.node.call("cat /run/cri.head")?;
        if !head.contains("grpc-status: 0") {
            bail!("{method}: {head}");
        }
        let answer = self.node.run(|| std::fs::read("/run/cri.answer"))?;
        ensure!(answer.len() >= 5, "{method}: truncated response");
        Ok(answer[5..].to_vec())
    }

    fn pods(&self) -> Result<Vec<String>> {
        let answer = self.cri("ListPodSandbox", &[])?;
        strings(&answer)
            .filter_map(|pod| strings(pod).next())
            .map(|id| Ok(String::from_utf8(id.to_vec())?))
            .collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for id in self.pods().unwrap_or_default() {
            let _gone = self.remove_pod(&id);
        }
        let _gone = self.ctr("task kill --all --signal 9 web");
    }
}

/// Encodes a length-delimited field (protobuf wire type 2).
fn text(field: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut encoded = vec![field << 3 | 2];
    encoded.extend(varint(bytes.len() as u64));
    encoded.extend(bytes);
    encoded
}

/// Encodes an integer field (protobuf wire type 0).
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut encoded = vec![field << 3];
    encoded.extend(varint(value));
    encoded
}

/// Encodes a base-128 varint.
fn varint(mut value: u64) -> Vec<u8> {
    let mut encoded = Vec::new();
    while value >= 0x80 {
        encoded.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    encoded.push(value.to_le_bytes()[0]);
    encoded
}

/// Returns the contents of the length-delimited fields at the start of a message, up to the first
/// field of another type.
fn strings(mut message: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (tag, rest) = message.split_first()?;
        let (length, rest) = read_varint(rest)?;
        if tag & 7 != 2 || rest.len() < length {
            return None;
        }
        let (field, rest) = rest.split_at(length);
        message = rest;
        Some(field)
    })
}

/// Decodes a varint; returns its value and the bytes after it.
fn read_varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let value = bytes[..=end]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    Some((value, &bytes[end + 1..]))
}

/// Mounts cgroup2 on `/sys/fs/cgroup` of the sandbox: crun uses version 2 only where no other
/// hierarchy is mounted.
pub(crate) fn unified_cgroups(node: &Machine) -> Result<()> {
    let kind = node.call("stat --file-system --format %T /sys/fs/cgroup")?;
    if kind.trim() == "cgroup2fs" {
        return Ok(());
    }
    node.call("mount -t cgroup2 none /sys/fs/cgroup").map(drop)
}

fn put(node: &Machine, path: &str, text: &str) -> Result<()> {
    node.run(|| {
        let folder = Path::new(path).parent().context("a folder")?;
        std::fs::create_dir_all(folder)?;
        Ok(std::fs::write(path, text)?)
    })
}
