//! Files that are generated from the code, and must be what it generates: reference pages, and the
//! sample configuration. A test of the agent checks the sample, which only the agent can print.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use abi::DropReason;
use anyhow::{Context as _, Result};
use model::{DegradedReason, NodeCheck};

use crate::command;

/// The page of all drop reasons.
const DROP_REASONS: &str = "docs/reference/drop-reasons.md";

/// The page with the tables of degraded reasons and of doctor's checks, each of which is generated
/// between two comments.
const OPERATIONS: &str = "docs/operations.md";
const TABLE_BEGIN: &str = "<!-- Generated from userspace/model/src/degraded_reason.rs by `cargo xtask tidy --bless`. -->\n";
const CHECKS_BEGIN: &str =
    "<!-- Generated from userspace/model/src/node_check.rs by `cargo xtask tidy --bless`. -->\n";
const TABLE_END: &str = "<!-- End of the generated table. -->\n";

/// The OpenAPI document, which the agent serves.
const OPENAPI: &str = "docs/reference/openapi.json";

/// The sample configuration of the agent.
const CONFIGURATION: &str = "xtask/assets/viaductd.toml";

/// A page differs from what is generated.
pub(super) fn offences() -> Vec<String> {
    let drops = fs::read_to_string(DROP_REASONS).unwrap_or_default();
    let operations = fs::read_to_string(OPERATIONS).unwrap_or_default();
    let openapi = fs::read_to_string(OPENAPI).unwrap_or_default();
    let pages = [
        (DROP_REASONS, drops == drop_reasons()),
        (OPERATIONS, operations == with_tables(&operations)),
        (OPENAPI, openapi == api::openapi::document()),
    ];
    let outdated = pages.into_iter().filter(|(_, is_current)| !is_current);
    outdated
        .map(|(page, _)| format!("{page}: not as generated; run `cargo xtask tidy --bless`"))
        .collect()
}

/// Writes the pages and the sample configuration.
pub(super) fn bless() -> Result<()> {
    fs::create_dir_all("docs/reference")?;
    let operations =
        fs::read_to_string(OPERATIONS).with_context(|| format!("cannot read {OPERATIONS}"))?;
    put(OPERATIONS, &with_tables(&operations))?;
    put(DROP_REASONS, &drop_reasons())?;
    // Before the agent is compiled, which contains it.
    put(OPENAPI, &api::openapi::document())?;
    let mut agent = Command::new("cargo");
    agent.args(["run", "--quiet", "-p", "agent", "--", "--sample-config"]);
    put(CONFIGURATION, &command::output(&mut agent)?)
}

fn put(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {path}"))
}

/// Returns the page with the current tables in place of those that it has.
fn with_tables(page: &str) -> String {
    let page = with_table(page, TABLE_BEGIN, &degraded_reasons());
    with_table(&page, CHECKS_BEGIN, &node_checks())
}

/// Returns the page with a table behind `begin`, in place of the one that it has. Without a place
/// for it, the table is at the end, so that the page counts as outdated.
fn with_table(page: &str, begin: &str, table: &str) -> String {
    let (head, rest) = page.split_once(begin).unwrap_or((page, TABLE_END));
    let (_, tail) = rest.split_once(TABLE_END).unwrap_or_default();
    format!("{head}{begin}\n{table}\n{TABLE_END}{tail}")
}

fn degraded_reasons() -> String {
    let mut table =
        String::from("| reason | meaning | what to do | CNI STATUS |\n|---|---|---|---|\n");
    for reason in DegradedReason::ALL {
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {} |",
            reason.word(),
            reason.meaning().trim(),
            reason.advice(),
            reason.status(),
        );
    }
    table
}

fn node_checks() -> String {
    let mut table = String::from("| check | what it checks | what to do |\n|---|---|---|\n");
    for check in NodeCheck::ALL {
        let _ = writeln!(
            table,
            "| `{}` | {} | {} |",
            check.word(),
            check.meaning().trim(),
            check.advice(),
        );
    }
    table
}

fn drop_reasons() -> String {
    let mut page = String::from(
        "# Drop reasons\n\n\
         <!-- Generated from ebpf-programs/abi/src/reason.rs by `cargo xtask tidy --bless`. -->\n\n\
         Every packet that Viaduct drops is counted under one of these reasons. The names are the same in\n\
         `GET /v1/counters` (field `drops`), in the metric `viaduct_drops_total{reason=\"…\"}` and in the log.\n\
         Counters are per node: packets and bytes since the datapath was loaded.\n\n\
         Hooks: `from_pod` and `to_pod` are the TC programs at the host's end of a pod's veth, for packets that\n\
         the pod sends and receives. `uplink_in` and `uplink_out` are those of an uplink. `xdp_guard` is the XDP\n\
         prefilter of an uplink (`--xdp-guard native`).\n",
    );
    for reason in DropReason::ALL {
        let _ = write!(
            page,
            "\n## {}\n\n{}\n\n* **Number:** {}\n* **Dropped at:** {}\n* **What to do:** {}\n",
            reason.name(),
            reason.meaning().trim(),
            reason as u32,
            hooks(reason),
            reason.advice(),
        );
    }
    page
}

fn hooks(reason: DropReason) -> String {
    let quoted: Vec<String> = reason
        .hooks()
        .split(", ")
        .map(|hook| format!("`{hook}`"))
        .collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_drop_reasons_has_each_with_hook_and_advice() {
        let page = drop_reasons();
        for reason in DropReason::ALL {
            assert!(page.contains(&format!("\n## {}\n", reason.name())));
            assert!(page.contains(reason.advice()));
        }
        assert!(page.contains("* **Dropped at:** `from_pod`, `uplink_out`"));
    }
}
