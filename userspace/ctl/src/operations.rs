//! `viaductctl operations`: the requests that the agent executes or has queued.

use anyhow::Result;
use api::{Client, OperationView, path};

use crate::output::Output;
use crate::render::TableStyle;
use crate::render::table::{number, row, styled_table, text};
use crate::{decode, get};

/// Options of `viaductctl operations`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Operations {
    #[command(flatten)]
    output: Output,
}

impl Operations {
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        let reply = get(client, path::OPERATIONS)?;
        match self.output.data() {
            Some(format) => format.reply(&reply),
            None => Ok(table(&decode::<Vec<_>>(&reply)?, self.output.style())),
        }
    }
}

fn table(operations: &[OperationView], style: TableStyle) -> String {
    let rows = operations.iter().map(|one| {
        row([
            text(&one.verb),
            text(one.attachment.as_deref().unwrap_or("-")),
            text(if one.running { "running" } else { "queued" }),
            number(one.milliseconds),
        ])
    });
    styled_table(&["REQUEST", "ATTACHMENT", "STATE", "MS"], rows, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_show_what_runs_and_what_waits() {
        let operation = |verb: &str, running: bool| OperationView {
            verb: verb.to_owned(),
            attachment: running.then(|| "pods/c1/eth0".to_owned()),
            running,
            milliseconds: 7,
        };
        let style = TableStyle {
            headers: true,
            wide: false,
        };
        let text = table(&[operation("ADD", true), operation("reload", false)], style);
        assert_eq!(
            text,
            "REQUEST  ATTACHMENT    STATE    MS\n\
             ADD      pods/c1/eth0  running   7\n\
             reload   -             queued    7\n"
        );
    }
}
