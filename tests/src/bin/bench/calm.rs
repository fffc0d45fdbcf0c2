//! Measuring again what was disturbed: a virtual machine whose host gives its processors to others for a tenth of a second
//! measures the host. What counts is what the host has taken, never what was measured.

use anyhow::Result;

use crate::accounted;

/// The part of the processors' time that may be missing.
const MOST: f64 = 0.005;
/// How often a measurement is tried. If the host is never quiet, the one counts from which it took least.
const TRIES: usize = 4;

/// Runs `measure`, again where the host has disturbed it.
pub(crate) fn measure<T>(mut measure: impl FnMut() -> Result<T>) -> Result<T> {
    calmest(|| {
        let (measured, spent) = accounted::during(&mut measure)?;
        let part = spent.stolen.as_secs_f64() / spent.all.as_secs_f64();
        Ok((measured, part))
    })
}

fn calmest<T>(mut attempt: impl FnMut() -> Result<(T, f64)>) -> Result<T> {
    let mut best = attempt()?;
    for _ in 1..TRIES {
        if best.1 <= MOST {
            break;
        }
        let next = attempt()?;
        if next.1 < best.1 {
            best = next;
        }
    }
    Ok(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken of these measurements, and how many were made, by what the host took from each.
    fn taken(stolen: &[f64]) -> Result<(usize, usize)> {
        let mut made = 0;
        let taken = calmest(|| {
            made += 1;
            Ok((made, stolen[made - 1]))
        })?;
        Ok((taken, made))
    }

    #[test]
    fn a_disturbed_measurement_is_made_again_and_a_calm_one_is_not() -> Result<()> {
        assert_eq!(taken(&[0.0])?, (1, 1));
        assert_eq!(taken(&[0.2, 0.001])?, (2, 2));
        assert_eq!(taken(&[0.2, 0.02, 0.0])?, (3, 3));
        Ok(())
    }

    #[test]
    fn where_the_host_is_never_quiet_the_calmest_counts() -> Result<()> {
        assert_eq!(taken(&[0.3, 0.1, 0.2, 0.4])?, (2, TRIES));
        Ok(())
    }
}
