//! Manual page and completions of the command line, for packages (feature `pages`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};

use crate::options::Options;

/// Environment variable with the directory that gets the files.
const FOLDER: &str = "VIADUCT_PAGES";

/// Name of the program.
const PROGRAM: &str = "viaduct-kube";

/// Returns the directory for the files; `None` if the program is to do its work.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Writes the files. An error is printed.
#[expect(clippy::print_stderr, reason = "the program does nothing else")]
pub(crate) fn write(folder: &Path) -> ExitCode {
    match write_all(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = folder.display();
            eprintln!("{PROGRAM}: cannot write pages to {folder}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Options::command(), PROGRAM, folder)?;
    }
    let mut page = Vec::new();
    // Daemons are in section 8.
    let manual = clap_mangen::Man::new(Options::command()).section("8");
    manual.render(&mut page)?;
    fs::write(folder.join(format!("{PROGRAM}.8")), page)
}
