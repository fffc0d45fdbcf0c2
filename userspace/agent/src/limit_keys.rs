//! Defaults and ceilings of the default network's limits: quantities, as Kubernetes writes them.

use std::num::NonZeroU64;

use anyhow::{Result, anyhow};
use model::Rates;

/// The rates of `--ingress-<what>` and `--egress-<what>`.
pub(crate) fn rates(what: &str, ingress: Option<&str>, egress: Option<&str>) -> Result<Rates> {
    let rate = |direction: &str, text: Option<&str>| -> Result<Option<NonZeroU64>> {
        let Some(text) = text else {
            return Ok(None);
        };
        let rate = cni::rate(text).map_err(|why| anyhow!("{direction}-{what}: {why}"))?;
        Ok(NonZeroU64::new(rate))
    };
    Ok(Rates {
        ingress: rate("ingress", ingress)?,
        egress: rate("egress", egress)?,
    })
}
