//! `suites`: the tests of the reference plugins, executed with the reference's plugins and with
//! Viaduct's.
//!
//! Most of these tests call the Go function of a command. In a copy of the sources this function
//! executes the plugin of PATH instead, as a runtime does. The copy is below `target/suites`; it
//! differs from the sources in [`sources`] only. `--vm` runs the compiled tests in a guest.

mod report;
mod sources;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::command::quoted;
use crate::vm::guest::{Accelerator, Guest};
use crate::vm::kernel::Kernel;
use crate::{command, dist, privilege, project, vm};

const PLUGIN: &str = include_str!("../assets/suites/plugin.sh");
const RUN: &str = include_str!("../assets/suites/run.sh");

/// Plugins that Viaduct has, and those of the reference that the tests execute beside them.
const OURS: [&str; 7] = [
    "bridge",
    "host-local",
    "portmap",
    "bandwidth",
    "firewall",
    "tuning",
    "loopback",
];
const BESIDE: [&str; 2] = ["ptp", "static"];

/// Arguments of `suites`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory with the sources of containernetworking/plugins and their vendored dependencies
    sources: PathBuf,
    /// Suites to run: loopback, host-local, tuning, bridge, portmap, firewall, bandwidth,
    /// integration [default: all]
    suites: Vec<String>,
    /// Go compiler, of the version that the sources require
    #[arg(long, default_value = "go")]
    go: PathBuf,
    /// Run only tests with names that match this regular expression
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Run the tests in a guest with this kernel: a series of Debian's, or the path of an image
    #[arg(long, value_name = "KERNEL")]
    vm: Option<String>,
}

/// Precedes the report in the output of a guest.
const REPORT: &str = "the report of the suite:";

/// Time after which a guest that runs a suite is ended.
const GUEST_LIMIT: Duration = Duration::from_hours(1);

/// A suite of the reference's sources.
struct Suite {
    name: &'static str,
    folder: &'static str,
    /// Regular expression of the tests that execute a plugin; the others call functions of the
    /// reference only.
    focus: &'static str,
    skip: &'static str,
}

const SUITES: [Suite; 8] = [
    suite("loopback", "plugins/main/loopback"),
    Suite {
        skip: "parses a simple resolv.conf|ignores comments|parses all fields",
        ..suite("host-local", "plugins/ipam/host-local")
    },
    suite("tuning", "plugins/meta/tuning"),
    Suite {
        skip: "ensure bridge address|ensure promiscuous mode|check vlan id|\
               creates a bridge$|handles an existing bridge$",
        ..suite("bridge", "plugins/main/bridge")
    },
    Suite {
        focus: "portmap integration tests",
        ..suite("portmap", "plugins/meta/portmap")
    },
    suite("firewall", "plugins/meta/firewall"),
    Suite {
        skip: "4GB burst",
        ..suite("bandwidth", "plugins/meta/bandwidth")
    },
    suite("integration", "integration"),
];

const fn suite(name: &'static str, folder: &'static str) -> Suite {
    Suite {
        name,
        folder,
        focus: "",
        skip: "^$",
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let known = |name: &String| SUITES.iter().any(|suite| suite.name == name);
    let unknown = args.suites.iter().find(|name| !known(name));
    ensure!(unknown.is_none(), "there is no suite {unknown:?}");
    dist::run(dist::Args::default())?;
    let work = Work::prepare(args)?;
    let mut failures = 0;
    for suite in &SUITES {
        if !args.suites.is_empty() && !args.suites.iter().any(|name| name == suite.name) {
            continue;
        }
        work.build(suite)?;
        let reference = work.execute(suite, "reference", args)?;
        let ours = work.execute(suite, "viaduct", args)?;
        failures += report::compare(suite.name, &reference, &ours)?;
    }
    ensure!(
        failures == 0,
        "{failures} tests pass with the reference plugins and fail with Viaduct's"
    );
    Ok(())
}

/// The folder of copies, test programs and results.
struct Work {
    folder: PathBuf,
    go: PathBuf,
    guest: Option<OtherKernel>,
}

impl Work {
    /// Copies the sources, and makes the folders of plugins: `reference` and `viaduct`.
    fn prepare(args: &Args) -> Result<Self> {
        let work = Self {
            folder: project::target().join("suites"),
            go: args.go.clone(),
            guest: args.vm.as_deref().map(OtherKernel::get).transpose()?,
        };
        let given = args
            .sources
            .canonicalize()
            .with_context(|| format!("no sources in {}", args.sources.display()))?;
        for name in ["sources", "reference", "viaduct", "tools", "tests"] {
            let folder = work.folder.join(name);
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
            fs::create_dir_all(folder)?;
        }
        let sources = work.folder.join("sources");
        let mut copy = Command::new("cp");
        command::run(copy.arg("-a").arg(given.join(".")).arg(&sources))?;
        for name in OURS.iter().chain(&BESIDE) {
            let folder = sources::folder_of(&sources, name)?;
            work.compile(&["build", "-o"], &format!("reference/{name}"), &folder)?;
        }
        sources::change(&sources)?;
        for name in ["server", "client"] {
            let folder = format!("./pkg/testutils/echo/{name}");
            work.compile(&["build", "-o"], &format!("tools/{name}"), &folder)?;
        }
        work.compile(&["build", "-o"], "tools/cnitool", "./cnitool")?;
        work.link_plugins()?;
        Ok(work)
    }

    fn link_plugins(&self) -> Result<()> {
        let script = self.folder.join("plugin.sh");
        let text = PLUGIN
            .replace("=WORK", &format!("={}", self.folder.display()))
            .replace("=DIST", &format!("={}", project::dist().display()));
        write_program(&script, &text)?;
        write_program(&self.folder.join("run.sh"), RUN)?;
        let ours = self.folder.join("viaduct");
        for name in OURS {
            symlink(&script, ours.join(name))?;
        }
        for name in BESIDE {
            symlink(self.folder.join("reference").join(name), ours.join(name))?;
        }
        Ok(())
    }

    fn build(&self, suite: &Suite) -> Result<()> {
        let folder = format!("./{}", suite.folder);
        self.compile(
            &["test", "-c", "-o"],
            &format!("tests/{}", suite.name),
            &folder,
        )
    }

    fn compile(&self, words: &[&str], output: &str, package: &str) -> Result<()> {
        let mut go = Command::new(&self.go);
        go.args(words).arg(self.folder.join(output)).arg(package);
        go.current_dir(self.folder.join("sources"));
        command::run(self.with_variables(&mut go))
    }

    /// Sets the variables with which Go uses the vendored dependencies and no network.
    fn with_variables<'a>(&self, program: &'a mut Command) -> &'a mut Command {
        program
            .envs([("GOFLAGS", "-mod=vendor"), ("GOTOOLCHAIN", "local")])
            .envs([("GOPROXY", "off"), ("CGO_ENABLED", "0")])
            .env("GOCACHE", self.folder.join("cache"))
            .env("GOPATH", self.folder.join("path"))
    }

    /// Runs a suite with the plugins of a folder, and returns its report.
    fn execute(&self, suite: &Suite, plugins: &str, args: &Args) -> Result<PathBuf> {
        let report = self.folder.join(format!("{}-{plugins}.json", suite.name));
        let mut run = privilege::as_root("bash")?;
        run.arg(self.folder.join("run.sh")).arg(&self.folder);
        run.args([plugins, suite.name, suite.folder]);
        let focus = args.focus.as_deref().unwrap_or(suite.focus);
        run.arg(format!("--ginkgo.focus={focus}"));
        run.arg(format!("--ginkgo.skip={}", suite.skip));
        run.args(["--ginkgo.no-color", "--ginkgo.succinct"]);
        run.arg(format!("--ginkgo.json-report={}", report.display()));
        let path = std::env::var("PATH").unwrap_or_default();
        let compiler = self.go.parent().map(Path::display);
        let path = compiler.map_or(path.clone(), |own| format!("{own}:{path}"));
        self.with_variables(&mut run).env("PATH", path);
        println!("$ {}", command::shown(&run));
        let log = self.folder.join(format!("{}-{plugins}.log", suite.name));
        let log = fs::File::create(&log)?;
        match &self.guest {
            Some(guest) => guest.execute(&run, &report, log)?,
            None => drop(run.stdout(log.try_clone()?).stderr(log).status()?),
        }
        Ok(report)
    }
}

/// Where suites run that need another kernel than the host's.
struct OtherKernel {
    kernel: Kernel,
    accelerator: Accelerator,
}

impl OtherKernel {
    fn get(word: &str) -> Result<Self> {
        let (mut kernels, accelerator) = vm::prepare(&[word.to_owned()])?;
        let kernel = kernels.pop().context("no kernel was prepared")?;
        Ok(Self {
            kernel,
            accelerator,
        })
    }

    /// Executes `run` in a guest. What it prints goes to `log`, the file that it leaves at `report`
    /// to the same path of the host: a guest's own files end with it.
    fn execute(&self, run: &Command, report: &Path, mut log: fs::File) -> Result<()> {
        let variables = run.get_envs().filter_map(|(name, value)| {
            let value = value?.to_string_lossy();
            Some(format!("export {}={}\n", name.display(), quoted(&value)))
        });
        let words: Vec<String> = std::iter::once(run.get_program())
            .chain(run.get_args())
            .map(|it| quoted(&it.to_string_lossy()))
            .collect();
        let script = format!(
            "{}{}\necho; echo {}; cat {}",
            variables.collect::<String>(),
            words.join(" "),
            quoted(REPORT),
            quoted(&report.to_string_lossy()),
        );
        let mut lines = None;
        let mut written = Ok(());
        let guest = Guest::alone(&self.kernel, self.accelerator, GUEST_LIMIT);
        let status = guest.run(&script, |line| match &mut lines {
            None if line == REPORT => lines = Some(String::new()),
            None => written = writeln!(log, "{line}"),
            Some(lines) => lines.extend([line, "\n"]),
        })?;
        written?;
        ensure!(status == 0, "the suite has left no report in the guest");
        fs::write(report, lines.context("no report was printed")?)?;
        Ok(())
    }
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
