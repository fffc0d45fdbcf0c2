//! The stage: links to the built test binaries and programs in a folder of their own, so that a new
//! build does not disturb running guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::binaries::TestBinary;
use crate::{command, project};

/// File that lists each test binary and its working directory.
const LIST: &str = "list";

/// The staged files.
pub(super) struct Stage {
    /// Test binaries by their own names.
    pub(super) tests: Vec<TestBinary>,
    folder: PathBuf,
}

impl Stage {
    fn folder() -> PathBuf {
        project::target().join("vm/stage")
    }

    /// Replaces the stage with what has just been built.
    pub(super) fn take(built: &[TestBinary]) -> Result<Self> {
        let folder = Self::folder();
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        for test in built {
            link(&test.program, &folder.join(&test.name))?;
        }
        link(&project::bpf_object(), &folder.join("datapath.o"))?;
        for dist in [
            project::dist(),
            project::next_dist(),
            project::layout_dist(),
        ] {
            command::output(Command::new("cp").arg("-al").arg(dist).arg(&folder))?;
        }
        let lines = built
            .iter()
            .map(|it| format!("{}\t{}\n", it.name, it.folder.display()));
        fs::write(folder.join(LIST), lines.collect::<String>())?;
        Self::last()
    }

    /// Returns the stage of the last build.
    pub(super) fn last() -> Result<Self> {
        let folder = Self::folder();
        let list = fs::read_to_string(folder.join(LIST)).context("nothing was staged before")?;
        let tests = list
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(name, place)| TestBinary {
                package: String::new(),
                name: name.to_owned(),
                program: folder.join(name),
                folder: place.into(),
            });
        Ok(Self {
            tests: tests.collect(),
            folder,
        })
    }

    /// Shell commands that set the variables by which tests find programs and BPF object.
    pub(super) fn variables(&self) -> String {
        let folder = self.folder.display();
        format!("export VIADUCT_DIST='{folder}/dist' VIADUCT_BPF_OBJECT='{folder}/datapath.o'")
    }
}

fn link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to).with_context(|| format!("cannot link {}", from.display()))
}
