//! Processor architectures for which the programs are built. The BPF object is the same on all of
//! them.

use std::path::PathBuf;
use std::process::Command;

use crate::project;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// AMD64.
    #[value(name = "x86_64")]
    X86_64,
    /// ARM64.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// That of this machine.
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// Returns the kernel's name of it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the name of it for Debian and for OCI images.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Returns the target of programs that use glibc.
    pub(crate) fn gnu(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Returns the target of programs that use musl.
    pub(crate) fn musl(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// Returns whether this machine executes its programs.
    pub(crate) fn is_host(self) -> bool {
        self == Self::HOST
    }

    /// Returns the folder that `dist` lays out.
    pub(crate) fn dist(self) -> PathBuf {
        if self.is_host() {
            project::dist()
        } else {
            project::root().join(format!("target/dist-{}", self.name()))
        }
    }

    /// Returns the path of a file of the checkout, or of `target/dist` of this architecture.
    pub(crate) fn file(self, path: &str) -> PathBuf {
        match path.strip_prefix("target/dist/") {
            Some(rest) => self.dist().join(rest),
            None => project::root().join(path),
        }
    }

    /// Returns the C compiler, by which programs are also linked.
    pub(crate) fn compiler(self) -> String {
        format!("{}-linux-gnu-gcc", self.name())
    }

    /// Makes cargo compile C code for the target, and link by its compiler.
    pub(crate) fn cross(self, cargo: &mut Command) {
        if self.is_host() {
            return;
        }
        for target in [self.gnu(), self.musl()] {
            let name = target.replace('-', "_");
            let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
            cargo.env(linker, self.compiler());
            cargo.env(format!("CC_{name}"), self.compiler());
        }
    }
}
