//! What a guest runs: links to what was built, in a place of its own, so that one may build again while guests run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::binaries::TestBinary;
use crate::{command, project};

/// Each test binary and the folder in which it runs.
const LIST: &str = "list";

/// Where it lies, and what has been staged last.
pub(super) struct Stage {
    /// Test binaries by their own names.
    pub(super) tests: Vec<TestBinary>,
    folder: PathBuf,
}

impl Stage {
    fn folder() -> PathBuf {
        project::target().join("vm/stage")
    }

    /// Takes what has just been built, in the place of what was there.
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
        for dist in [project::dist(), project::target().join("dist-next")] {
            command::output(Command::new("cp").arg("-al").arg(dist).arg(&folder))?;
        }
        let lines = built
            .iter()
            .map(|it| format!("{}\t{}\n", it.name, it.folder.display()));
        fs::write(folder.join(LIST), lines.collect::<String>())?;
        Self::last()
    }

    /// What was taken last.
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

    /// The variables by which tests find the rest.
    pub(super) fn variables(&self) -> String {
        let folder = self.folder.display();
        format!("export VIADUCT_DIST='{folder}/dist' VIADUCT_DATAPATH_OBJECT='{folder}/datapath.o'")
    }
}

fn link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to).with_context(|| format!("cannot link {}", from.display()))
}
