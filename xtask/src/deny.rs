//! `deny`: checks the dependencies: licences, banned and duplicate crates, sources, and published
//! security advisories.
//!
//! `deny.toml` has the rules, and cargo-deny applies them. The database of advisories is a git
//! repository. Where it cannot be had, the check of advisories is counted as skipped, with the
//! reason, and the other checks still run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

use crate::progress::{Steps, Voice};
use crate::rungs::Count;
use crate::{command, project, setup};

/// Checks that need no network.
const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Environment variable with a clone of the database, for machines that do not reach its host.
const DATABASE: &str = "VIADUCT_ADVISORY_DB";

/// The repository that cargo-deny clones.
const UPSTREAM: &str = "https://github.com/RustSec/advisory-db";

/// Limit of cloning the database: some ten megabytes.
const FETCH_LIMIT: Duration = Duration::from_mins(2);

/// Age up to which a database that was fetched before is used if it cannot be fetched now.
const OLDEST: Duration = Duration::from_hours(24 * 30);

/// Arguments of `deny`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Git clone of the RustSec advisory database, for machines that cannot fetch it
    #[arg(long, env = DATABASE, value_name = "DIRECTORY")]
    advisory_db: Option<PathBuf>,
    /// Fail if there is no advisory database
    #[arg(long)]
    require_advisories: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let count = check(args.advisory_db.as_deref())?;
    println!(
        "dependencies: {} checks passed, {} failed, {} skipped",
        count.passed, count.failed, count.skipped
    );
    if !count.good {
        bail!("cargo-deny has findings");
    }
    if args.require_advisories && count.skipped > 0 {
        bail!("there is no advisory database");
    }
    Ok(())
}

/// Runs all checks with the database that the environment names, if any.
pub(crate) fn of_ladder() -> Result<Count> {
    let database = std::env::var_os(DATABASE).map(PathBuf::from);
    check(database.as_deref())
}

fn check(database: Option<&Path>) -> Result<Count> {
    let deny = Deny {
        program: setup::ensure_deny()?,
        database: database.map(Path::to_owned),
    };
    let mut count = Count::of_nothing();
    for which in OFFLINE {
        count.add(deny.check(which, &[])?);
    }
    match deny.database()? {
        Database::Current => count.add(deny.check("advisories", &[])?),
        Database::Stored => count.add(deny.check("advisories", &["--offline"])?),
        Database::None => {
            eprintln!(
                "skipped: advisories: no advisory database: {UPSTREAM} cannot be fetched; \
                 {DATABASE} can name a clone"
            );
            count.skipped += 1;
        }
    }
    Ok(count)
}

/// The database of advisories in `target/tools`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Database {
    /// Fetched now.
    Current,
    /// Fetched at most [`OLDEST`] ago.
    Stored,
    None,
}

struct Deny {
    program: PathBuf,
    /// A clone to fetch from, in place of [`UPSTREAM`].
    database: Option<PathBuf>,
}

impl Deny {
    /// Runs one check, and returns whether it passed.
    fn check(&self, which: &str, options: &[&str]) -> Result<bool> {
        let mut deny = self.command()?;
        deny.args(options).args(["check", "--hide-inclusion-graph"]);
        match command::run(deny.arg(which)) {
            Ok(()) => Ok(true),
            Err(error) => {
                eprintln!("{which}: {error:#}");
                Ok(false)
            }
        }
    }

    /// Fetches the database, or finds the one that was fetched before.
    fn database(&self) -> Result<Database> {
        let steps = Steps::new(Voice::QuietIfDone);
        let mut fetch = self.command()?;
        fetch.args(["fetch", "db"]);
        // Never ask for credentials: the step has no terminal.
        fetch.env("GIT_TERMINAL_PROMPT", "0");
        if steps.works("fetch the advisory database", &mut fetch, FETCH_LIMIT)? {
            return Ok(Database::Current);
        }
        if self.database.is_some() {
            bail!("the directory in {DATABASE} is no clone of the advisory database");
        }
        let age = newest(&folder()).and_then(|time| time.elapsed().ok());
        Ok(match age {
            Some(age) if age <= OLDEST => {
                eprintln!(
                    "advisories: of a database that is {} days old",
                    age.as_secs() / 86400
                );
                Database::Stored
            }
            _ => Database::None,
        })
    }

    fn command(&self) -> Result<Command> {
        let mut deny = Command::new(&self.program);
        // The language of git's messages, which cargo-deny reads.
        deny.env("LC_ALL", "C");
        if let Some(database) = &self.database {
            let path = database
                .canonicalize()
                .with_context(|| format!("no directory {}", database.display()))?;
            // `git -c url.file://….insteadOf=…`, for a git that cargo-deny executes.
            let key = format!("url.file://{}.insteadOf", path.display());
            deny.envs([("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_VALUE_0", UPSTREAM)]);
            deny.env("GIT_CONFIG_KEY_0", key);
        }
        Ok(deny)
    }
}

/// The folder of databases, `db-path` in `deny.toml`.
fn folder() -> PathBuf {
    project::tools().join("advisory-dbs")
}

/// Returns when the newest database below `folder` was fetched.
fn newest(folder: &Path) -> Option<SystemTime> {
    let clones = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let heads = clones.map(|clone| clone.path().join(".git"));
    heads
        .filter_map(|git| {
            let fetched = git.join("FETCH_HEAD").metadata();
            let metadata = fetched.or_else(|_| git.join("HEAD").metadata()).ok()?;
            metadata.modified().ok()
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_toml_stores_the_database_where_it_is_looked_for() {
        let rules = include_str!("../../deny.toml");
        let path = format!("db-path = \"{}\"", project::short(&folder()));
        assert!(rules.lines().any(|line| line == path), "{path}");
    }

    #[test]
    fn a_folder_without_a_clone_has_no_database() {
        assert_eq!(newest(Path::new("/nonexistent")), None);
        assert_eq!(newest(&project::root().join("docs")), None);
    }
}
