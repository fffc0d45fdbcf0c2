//! `tidy`: the project's rules that compilers do not check.

mod docs;
mod edges;
mod gates;
mod language;
mod reference_docs;
mod references;
mod rings;
mod source;

use anyhow::{Result, bail};

use crate::metadata;

/// Arguments of `tidy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the reference pages that are generated from the code
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.bless {
        reference_docs::bless()?;
    }
    check()
}

/// Lists all offences at once, each as `place: what is wrong`.
pub(crate) fn check() -> Result<()> {
    let metadata = metadata::load()?;
    let mut offences = edges::offences(&metadata);
    offences.extend(gates::offences(&metadata));
    offences.extend(rings::offences()?);
    offences.extend(source::offences()?);
    offences.extend(docs::offences()?);
    offences.extend(language::offences()?);
    offences.extend(references::offences()?);
    offences.extend(reference_docs::offences());
    if offences.is_empty() {
        eprintln!("tidy: nothing to say");
        return Ok(());
    }
    for offence in &offences {
        eprintln!("{offence}");
    }
    bail!("tidy: {} offence(s)", offences.len());
}
