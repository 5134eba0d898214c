//! Plots of measures as SVG: lines for figures at several sizes, bars for the others.

use std::fmt::Write as _;

use crate::{
    Outcome,
    outcome::Measure,
    report::{escape::escaped, figure},
};

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 200.0;
/// Space for the numbers of an axis.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 22.0;

/// Colours that most people can tell apart.
const COLOURS: [&str; 6] = [
    "#2f6fde", "#d1642a", "#7a55c7", "#1f9d76", "#b23a74", "#8a7d2c",
];

/// One plot for each measure with a figure other than zero.
pub(crate) fn all(outcome: &Outcome) -> Vec<String> {
    let groups = outcome.measures_by_name().into_iter();
    let shows_something = |measures: &Vec<&Measure>| {
        let mut values = measures.iter().flat_map(|measure| measure.values.values());
        values.any(|value| *value != 0.0)
    };
    groups
        .filter(shows_something)
        .map(|measures| {
            let drawing = if measures.len() > 1 {
                lines(&measures, &outcome.arms)
            } else {
                bars(measures[0], &outcome.arms)
            };
            let mut caption = escaped(&measures[0].name);
            if !measures[0].unit.is_empty() {
                let _ = write!(caption, ", {}", escaped(&measures[0].unit));
            }
            format!("<figure><figcaption>{caption}</figcaption>{drawing}</figure>\n")
        })
        .collect()
}

/// The colour of an arm, the same in all plots of a section.
fn colour(position: usize) -> &'static str {
    COLOURS[position % COLOURS.len()]
}

fn bars(measure: &Measure, arms: &[String]) -> String {
    let largest = measure.values.values().copied().fold(0.0, f64::max);
    let room = WIDTH - LEFT - RIGHT;
    let mut shapes = String::new();
    let mut y = TOP;
    for (position, arm) in arms.iter().enumerate() {
        let Some(&value) = measure.values.get(arm) else {
            continue;
        };
        let width = if largest > 0.0 {
            room * value / largest
        } else {
            0.0
        };
        let _ = write!(
            shapes,
            "<text class=\"label\" x=\"0\" y=\"{:.0}\">{}</text>\
             <text x=\"0\" y=\"{:.0}\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{:.1}\" height=\"12\" rx=\"2\" fill=\"{}\"/>",
            y + 10.0,
            escaped(arm),
            y + 26.0,
            measure.figure(arm),
            y + 16.0,
            width.max(1.0),
            colour(position)
        );
        y += 36.0;
    }
    svg(y, &shapes)
}

fn lines(measures: &[&Measure], arms: &[String]) -> String {
    let sizes: Vec<f64> = measures
        .iter()
        .map(|measure| f64::from(measure.size.unwrap_or(0)))
        .collect();
    let values = measures.iter().flat_map(|measure| measure.values.values());
    let across = Scale::of(sizes.iter().copied(), LEFT, WIDTH - RIGHT);
    let up = Scale::of(values.copied(), HEIGHT - BOTTOM, TOP);
    let mut shapes = axes(&across, &up, &sizes);
    let mut y = HEIGHT + 12.0;
    for (position, arm) in arms.iter().enumerate() {
        let points: Vec<(f64, f64)> = measures
            .iter()
            .zip(&sizes)
            .filter_map(|(measure, &size)| {
                Some((across.at(size), up.at(*measure.values.get(arm)?)))
            })
            .collect();
        if points.is_empty() {
            continue;
        }
        shapes += &line(&points, colour(position));
        let _ = write!(
            shapes,
            "<rect x=\"{LEFT}\" y=\"{:.0}\" width=\"10\" height=\"10\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            y - 9.0,
            colour(position),
            LEFT + 16.0,
            y,
            escaped(arm)
        );
        y += 16.0;
    }
    svg(y, &shapes)
}

fn line(points: &[(f64, f64)], colour: &str) -> String {
    let path: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let mut text = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for (x, y) in points {
        let _ = write!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
        );
    }
    text
}

fn axes(across: &Scale, up: &Scale, sizes: &[f64]) -> String {
    let mut text = String::new();
    for value in up.marks() {
        let y = up.at(value);
        let _ = write!(
            text,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"label\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 5.0,
            y + 4.0,
            figure::number(value)
        );
    }
    for &size in sizes {
        let _ = write!(
            text,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            across.at(size).min(WIDTH - 20.0),
            HEIGHT - 6.0,
            figure::number(size)
        );
    }
    text
}

fn svg(height: f64, shapes: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">{shapes}</svg>")
}

/// A logarithmic axis, so that figures that differ a hundredfold fit into one plot.
struct Scale {
    /// Logarithms to base 10 of the ends.
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| *value > 0.0) {
            low = low.min(value.log10());
            high = high.max(value.log10());
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        } else if high - low < 0.01 {
            (low, high) = (low - 0.5, high + 0.5);
        }
        Self {
            low,
            high,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / (self.high - self.low);
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Powers of ten on the axis, or its ends if there are fewer than two.
    fn marks(&self) -> Vec<f64> {
        let mut exponent = self.low.ceil();
        let mut marks = Vec::new();
        while exponent <= self.high {
            marks.push(10f64.powf(exponent));
            exponent += 1.0;
        }
        if marks.len() < 2 {
            marks = vec![10f64.powf(self.low), 10f64.powf(self.high)];
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_logarithmic_and_marks_powers_of_ten() {
        let scale = Scale::of([0.5, 800.0, 0.0].into_iter(), 0.0, 100.0);
        assert!(scale.at(0.5).abs() < 1e-9);
        assert!((scale.at(800.0) - 100.0).abs() < 1e-9);
        assert!((scale.at(20.0) - 50.0).abs() < 1e-9, "the middle of both");
        assert!(scale.at(0.0).abs() < 1e-9, "nothing is outside the plot");
        let marks: Vec<String> = scale.marks().into_iter().map(figure::number).collect();
        assert_eq!(marks, ["1.00", "10.0", "100"]);
    }

    #[test]
    fn equal_values_still_have_a_place() {
        let scale = Scale::of([7.0, 7.0].into_iter(), 0.0, 100.0);
        assert!((scale.at(7.0) - 50.0).abs() < 1e-9);
        assert_eq!(scale.marks().len(), 2);
    }
}
