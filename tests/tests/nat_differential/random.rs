//! Random traces through Viaduct and through the reference plugins: what arrives must be the same,
//! except for the listed [`differences`].

mod case;
mod compare;
mod differences;
mod generate;
mod kinds;
mod packet;
mod reassembly;
mod replay;
mod system;
mod trace;
mod wire;

pub(crate) use compare::run;

/// Returns the names of the allowed differences.
pub(crate) fn allowed() -> impl Iterator<Item = &'static str> {
    differences::ALL.iter().map(|difference| difference.name)
}
