//! Reference pages that are generated from the code, and must be what it generates.

use std::fmt::Write as _;
use std::fs;

use abi::DropReason;
use anyhow::{Context as _, Result};
use model::DegradedReason;

/// The page of all drop reasons.
const DROP_REASONS: &str = "docs/reference/drop-reasons.md";

/// The page with the table of degraded reasons, which is generated between two comments.
const OPERATIONS: &str = "docs/operations.md";
const TABLE_BEGIN: &str = "<!-- Generated from userspace/model/src/degraded_reason.rs by `cargo xtask tidy --bless`. -->\n";
const TABLE_END: &str = "<!-- End of the generated table. -->\n";

/// A page differs from what is generated.
pub(super) fn offences() -> Vec<String> {
    let drops = fs::read_to_string(DROP_REASONS).unwrap_or_default();
    let operations = fs::read_to_string(OPERATIONS).unwrap_or_default();
    let pages = [
        (DROP_REASONS, drops == drop_reasons()),
        (OPERATIONS, operations == with_degraded_reasons(&operations)),
    ];
    let outdated = pages.into_iter().filter(|(_, is_current)| !is_current);
    outdated
        .map(|(page, _)| format!("{page}: not as generated; run `cargo xtask tidy --bless`"))
        .collect()
}

/// Writes the pages.
pub(super) fn bless() -> Result<()> {
    fs::create_dir_all("docs/reference")?;
    let operations =
        fs::read_to_string(OPERATIONS).with_context(|| format!("cannot read {OPERATIONS}"))?;
    let pages = [
        (DROP_REASONS, drop_reasons()),
        (OPERATIONS, with_degraded_reasons(&operations)),
    ];
    for (page, text) in pages {
        fs::write(page, text).with_context(|| format!("cannot write {page}"))?;
    }
    Ok(())
}

/// Returns the page with the current table of degraded reasons in place of the one that it has.
/// Without a place for it, the table is at the end, so that the page counts as outdated.
fn with_degraded_reasons(page: &str) -> String {
    let (head, rest) = page.split_once(TABLE_BEGIN).unwrap_or((page, TABLE_END));
    let (_, tail) = rest.split_once(TABLE_END).unwrap_or_default();
    let mut table =
        String::from("\n| reason | meaning | what to do | CNI STATUS |\n|---|---|---|---|\n");
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
    format!("{head}{TABLE_BEGIN}{table}\n{TABLE_END}{tail}")
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
