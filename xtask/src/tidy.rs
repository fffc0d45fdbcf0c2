//! `tidy`: the rules of the house that compilers do not check.

mod docs;
mod edges;
mod gates;
mod licences;
mod source;

use anyhow::{Result, bail};

use crate::metadata;

/// All offences are listed at once, each as `place: what is wrong`.
pub(crate) fn run() -> Result<()> {
    let metadata = metadata::load()?;
    let mut offences = edges::offences(&metadata);
    offences.extend(gates::offences(&metadata));
    offences.extend(licences::offences(&metadata));
    offences.extend(source::offences()?);
    offences.extend(docs::offences()?);
    if offences.is_empty() {
        eprintln!("tidy: nothing to say");
        return Ok(());
    }
    for offence in &offences {
        eprintln!("{offence}");
    }
    bail!("tidy: {} offence(s)", offences.len());
}
