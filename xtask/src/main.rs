//! Everything a developer does, as one command: `cargo xtask VERB`.
//!
//! One file per verb. A verb prints the commands that it runs, so that they can be repeated by
//! hand. Nothing here is part of the product.
#![expect(
    clippy::disallowed_methods,
    reason = "running other programs is what this crate is for"
)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command for people speaks to the terminal"
)]

mod arch;
mod bench;
mod binaries;
mod build;
mod changed;
mod ci;
mod command;
mod compatibility;
mod demo;
mod deny;
mod differential;
mod dist;
mod fuzz;
mod metadata;
mod package;
mod privilege;
mod programs;
mod progress;
mod project;
mod rungs;
mod sbom;
mod setup;
mod side_by_side;
mod soak;
mod source;
mod style;
mod suites;
mod test;
mod tidy;
mod vagrant;
mod verify;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and demonstrates Viaduct.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install compilers and packages that building, testing and the demo need, where missing
    Setup(setup::Args),
    /// Build the BPF object and the three programs
    Build(build::Args),
    /// Run one rung of the tests (unit, netns, e2e), or all of them
    Test(test::Args),
    /// Show every feature live, in temporary network namespaces
    Demo(demo::Args),
    /// Measure Viaduct beside the reference plugins, and write target/bench/report.html
    Bench(bench::Args),
    /// Measure Viaduct and the reference plugins beside Docker, firewalld, ufw, kube-proxy and
    /// podman
    Compatibility(compatibility::Args),
    /// Run the tests of the reference plugins with the reference's plugins and with Viaduct's
    Suites(suites::Args),
    /// Send random traces through Viaduct and through the reference plugins, and compare what
    /// arrives
    Differential(differential::Args),
    /// Run the fuzz targets of all parsers, with the address sanitizer
    Fuzz(fuzz::Args),
    /// Load every BPF program and compare the verifier's instruction counts with the committed
    /// table
    Verify(verify::Args),
    /// Run the tests that need root on other kernels, in virtual machines
    Vm(vm::Args),
    /// Validate vagrant/Vagrantfile, and run its provisioning script in a virtual machine
    VagrantCheck(vagrant::Args),
    /// Check import edges, file heads, lengths, language and references
    Tidy(tidy::Args),
    /// Check the licences, sources and advisories of all dependencies with cargo-deny
    Deny(deny::Args),
    /// Lay out the files of an installation under target/dist
    Dist(dist::Args),
    /// Build packages for Debian and Fedora, a tarball, an OCI image and checksums under
    /// target/package
    Package(package::Args),
    /// Run all checks that must pass before a change is merged
    Ci,
}

fn main() -> ExitCode {
    match obey(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(verb: Verb) -> anyhow::Result<()> {
    std::env::set_current_dir(project::root())?;
    match verb {
        Verb::Setup(args) => setup::run(&args),
        Verb::Build(args) => build::run(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Compatibility(args) => compatibility::run(&args),
        Verb::Suites(args) => suites::run(&args),
        Verb::Differential(args) => differential::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Verify(args) => verify::run(&args),
        Verb::Vm(args) => vm::run(&args),
        Verb::VagrantCheck(args) => vagrant::run(&args),
        Verb::Tidy(args) => tidy::run(&args),
        Verb::Deny(args) => deny::run(&args),
        Verb::Dist(args) => dist::run(args),
        Verb::Package(args) => package::run(&args),
        Verb::Ci => ci::run(),
    }
}
