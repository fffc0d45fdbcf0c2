//! SVG charts: bars where systems are compared at one size, lines where there are several sizes.

use std::fmt::Write as _;

use super::html::escaped;
use super::markdown::spread;
use super::{Chapter, distinct, number};
use crate::row::{Point, Row, system};
use crate::statistics::Summary;

const WIDTH: f64 = 900.0;
/// X coordinate of the end of the bars' labels.
const LEFT: f64 = 150.0;
/// Width reserved for the numbers beside the bars.
const RIGHT: f64 = 200.0;
const BAR: f64 = 24.0;
const HEIGHT: f64 = 300.0;
const TOP: f64 = 34.0;

/// Draws all charts of a family.
pub(super) fn pictures(chapter: &Chapter) -> Vec<String> {
    let names = distinct(chapter.rows.iter().map(Row::title));
    let of = |name: &str| {
        chapter
            .rows
            .iter()
            .filter(move |row| row.title() == name)
            .collect::<Vec<_>>()
    };
    names
        .iter()
        .map(|name| {
            let rows = of(name);
            if rows.iter().all(|row| row.point.is_some()) {
                lines(name, &rows)
            } else {
                bars(name, &rows)
            }
        })
        .collect()
}

fn bars(name: &str, rows: &[&Row]) -> String {
    let summaries: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row, Summary::of(&row.samples)?)))
        .collect();
    let most = summaries
        .iter()
        .map(|(_, it)| it.high)
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let mut picture = String::new();
    let mut y = TOP;
    for (row, summary) in &summaries {
        let (length, middle) = ((summary.median * scale).max(0.0), y + BAR / 2.0 - 3.0);
        let _ = write!(
            picture,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{:.0}\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"currentColor\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\">{}</text>",
            LEFT - 8.0,
            y + 14.0,
            escaped(&row.system),
            BAR - 6.0,
            colour(&row.system),
            LEFT + summary.low.max(0.0) * scale,
            LEFT + summary.high.max(0.0) * scale,
            LEFT + length.max(summary.high * scale) + 8.0,
            y + 14.0,
            spread(summary),
        );
        y += BAR;
    }
    framed(name, rows, y + 6.0, &picture)
}

/// Draws one line per system. Both axes are logarithmic; 0 stands one decade left of the smallest
/// other size, behind a break of the axis, because a logarithm has no place for it.
fn lines(name: &str, rows: &[&Row]) -> String {
    let Some(frame) = Frame::around(rows) else {
        return String::new();
    };
    let mut picture = frame.grid(rows);
    for (number, system) in distinct(rows.iter().map(|row| row.system.clone()))
        .iter()
        .enumerate()
    {
        let points: Vec<_> = rows
            .iter()
            .filter(|row| &row.system == system)
            .filter_map(|row| Some((row.point?, Summary::of(&row.samples)?)))
            .collect();
        let path: Vec<_> = points
            .iter()
            .map(|(at, it)| frame.place(*at, it.median))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let colour = colour(system);
        let _ = write!(
            picture,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (at, summary) in &points {
            let ((x, low), (_, high)) = (
                frame.place(*at, summary.low),
                frame.place(*at, summary.high),
            );
            let (_, y) = frame.place(*at, summary.median);
            let _ = write!(
                picture,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "there are few systems")]
        let y = TOP + 16.0 + number as f64 * 18.0;
        let x = WIDTH - RIGHT + 30.0;
        let _ = write!(
            picture,
            "<rect x=\"{x}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{y}\">{}</text>",
            y - 10.0,
            x + 18.0,
            escaped(system)
        );
    }
    framed(name, rows, HEIGHT + 50.0, &picture)
}

struct Frame {
    /// The smallest size above 0.
    smallest: u64,
    low: (f64, f64),
    high: (f64, f64),
}

impl Frame {
    fn around(rows: &[&Row]) -> Option<Self> {
        let positive = |value: f64| value.max(1e-6).ln();
        let smallest = rows
            .iter()
            .filter_map(|row| row.point.map(|point| point.at).filter(|at| *at > 0))
            .min()
            .unwrap_or(1);
        let mut frame: Option<Self> = None;
        for row in rows {
            let x = position(row.point?.at, smallest);
            let summary = Summary::of(&row.samples)?;
            let (low, high) = (positive(summary.low), positive(summary.high));
            let so_far = frame.get_or_insert(Self {
                smallest,
                low: (x, low),
                high: (x, high),
            });
            so_far.low = (so_far.low.0.min(x), so_far.low.1.min(low));
            so_far.high = (so_far.high.0.max(x), so_far.high.1.max(high));
        }
        // A margin above and below, also for a constant line.
        frame.map(|it| Self {
            smallest,
            low: (it.low.0 - 0.1, it.low.1 - 0.3),
            high: (it.high.0 + 0.1, it.high.1 + 0.3),
        })
    }

    fn place(&self, point: Point, value: f64) -> (f64, f64) {
        let part = |value: f64, low: f64, high: f64| (value - low) / (high - low);
        let y = part(value.max(1e-6).ln(), self.low.1, self.high.1);
        (
            self.across(position(point.at, self.smallest)),
            HEIGHT - y * (HEIGHT - TOP),
        )
    }

    /// Returns the x coordinate of a position on the axis.
    fn across(&self, position: f64) -> f64 {
        let part = (position - self.low.0) / (self.high.0 - self.low.0);
        LEFT / 2.0 + part * (WIDTH - RIGHT - LEFT / 2.0)
    }

    fn grid(&self, rows: &[&Row]) -> String {
        let mut grid = String::new();
        let Some(axis) = rows.first().and_then(|row| row.point) else {
            return grid;
        };
        let mut sizes: Vec<_> = rows.iter().filter_map(|row| row.point).collect();
        sizes.sort_by_key(|point| point.at);
        sizes.dedup();
        for size in sizes {
            let (x, _) = self.place(size, 1.0);
            let text = number(f64::from(u32::try_from(size.at).unwrap_or(u32::MAX)));
            // A size is whole: what follows the point are zeros.
            let label = text.split('.').next().unwrap_or_default();
            let _ = write!(
                grid,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{HEIGHT}\"/>\
                 <text class=\"dim\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
                HEIGHT + 18.0
            );
        }
        self.name_axis(&mut grid, axis);
        for tick in ticks(self.low.1.exp(), self.high.1.exp()) {
            let (_, y) = self.place(axis, tick);
            let _ = write!(
                grid,
                "<line class=\"grid\" x1=\"{:.0}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"dim\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT / 2.0,
                WIDTH - RIGHT,
                LEFT / 2.0 - 6.0,
                y + 4.0,
                number(tick)
            );
        }
        grid
    }

    /// Writes below the sizes what they count, and marks the break between 0 and the next size.
    fn name_axis(&self, grid: &mut String, axis: Point) {
        let middle = f64::midpoint(LEFT / 2.0, WIDTH - RIGHT);
        let _ = write!(
            grid,
            "<text class=\"dim\" x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{} (logarithmic)</text>",
            HEIGHT + 36.0,
            escaped(axis.axis)
        );
        let zero = position(0, self.smallest);
        if self.low.0 < zero && zero + std::f64::consts::LN_10 < self.high.0 {
            let x = self.across(zero + std::f64::consts::LN_10 / 2.0);
            let _ = write!(
                grid,
                "<text class=\"dim\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">//</text>",
                HEIGHT + 4.0
            );
        }
    }
}

/// Returns the place of a size on a logarithmic axis; 0 stands one decade below the `smallest`
/// other size.
fn position(at: u64, smallest: u64) -> f64 {
    let logarithm = |at: u64| f64::from(u32::try_from(at).unwrap_or(u32::MAX)).ln();
    match at {
        0 => logarithm(smallest) - std::f64::consts::LN_10,
        at => logarithm(at),
    }
}

/// Returns 1, 2 and 5 times each power of ten within the range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = (-6..12).map(|power| 10_f64.powi(power));
    powers
        .flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * power))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

fn framed(name: &str, rows: &[&Row], height: f64, picture: &str) -> String {
    let unit = rows.first().map_or("", |row| row.unit);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}\">\
         <text x=\"0\" y=\"16\" font-weight=\"bold\">{name} <tspan class=\"dim\">({unit})</tspan></text>{picture}</svg>",
        name = escaped(name)
    )
}

/// Returns the colour of a system, the same in all charts.
fn colour(name: &str) -> &'static str {
    match name {
        system::BARE => "#8c959f",
        system::FORWARDING => "#6f8fb5",
        system::LEGACY => "#d18616",
        system::NFT => "#b35ca3",
        system::VIADUCT => "#1a7f37",
        _ => "#57606a",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(sizes: &[u64]) -> String {
        let rows: Vec<_> = sizes
            .iter()
            .map(|at| Row {
                samples: vec![1000.0],
                ..Row::new("cost", system::VIADUCT, "ns").at("hostports", *at)
            })
            .collect();
        lines("cost", &rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn size_zero_is_one_decade_left_of_the_smallest_other_size() {
        let decade = position(100, 10) - position(10, 10);
        assert!((position(10, 10) - position(0, 10) - decade).abs() < 1e-9);
    }

    #[test]
    fn a_logarithmic_axis_has_a_break_only_where_size_zero_was_measured() {
        assert!(chart(&[0, 10, 10_000]).contains(">//<"));
        assert!(!chart(&[10, 10_000]).contains(">//<"));
        assert!(!chart(&[0]).contains(">//<"));
    }

    #[test]
    fn the_size_axis_is_labelled_with_numbers_and_named_once() {
        let chart = chart(&[0, 10, 10_000]);
        for label in [">0<", ">10<", ">10,000<", ">hostports (logarithmic)<"] {
            assert_eq!(chart.matches(label).count(), 1, "{label}");
        }
    }
}
