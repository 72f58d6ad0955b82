//! Curves over message size as SVG: both axes logarithmic, medians with their spread.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 46.0;
/// The area of the curves; their names stand to the right of it.
const AREA: (f64, f64) = (500.0, 410.0);
/// Colours that colour-blind readers can tell apart too (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7",
];

/// A median and how far from it the others are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) low: f64,
    pub(super) y: f64,
    pub(super) high: f64,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) title: &'static str,
    pub(super) points: Vec<Point>,
}

/// A picture of some curves.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) curves: Vec<Curve>,
}

/// A logarithmic axis: where on the picture a value stands.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    length: f64,
}

impl Axis {
    /// Makes an axis from the power of `base` below the least value to the one above the greatest.
    fn over(values: impl Iterator<Item = f64> + Clone, base: f64, start: f64, length: f64) -> Self {
        let positive = || {
            values
                .clone()
                .filter(|value| *value > 0.0 && value.is_finite())
        };
        let least = positive().fold(f64::INFINITY, f64::min);
        let greatest = positive().fold(0.0, f64::max);
        if !least.is_finite() {
            return Self {
                from: 1.0,
                to: base,
                start,
                length,
            };
        }
        let from = base.powf(least.log(base).floor());
        let to = base.powf(greatest.log(base).ceil()).max(from * base);
        Self {
            from,
            to,
            start,
            length,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(self.from) / self.from).ln() / (self.to / self.from).ln();
        self.start + share * self.length
    }

    fn ticks(&self, base: f64) -> impl Iterator<Item = f64> {
        let count = (self.to / self.from).log(base).round() as i32;
        let from = self.from;
        (0..=count).map(move |power| from * base.powi(power))
    }
}

impl Plot {
    /// Returns the picture.
    pub(super) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Axis::over(points().map(|point| point.x), 4.0, LEFT, AREA.0);
        let spread = points().flat_map(|point| [point.low, point.high]);
        let y = Axis::over(spread, 10.0, TOP + AREA.1, -AREA.1);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        write_text(&mut svg, (LEFT, 24.0), "start", &self.title);
        write_axes(&mut svg, &x, &y);
        let middle = LEFT + AREA.0 / 2.0;
        write_text(&mut svg, (middle, TOP + AREA.1 + 44.0), "middle", self.x);
        write_text(&mut svg, (LEFT, TOP - 8.0), "end", self.y);
        for (number, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            curve.write(&mut svg, (&x, &y), colour);
            let line = TOP + 12.0 + 22.0 * number as f64;
            let from = LEFT + AREA.0 + 14.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{from}\" y1=\"{line}\" x2=\"{}\" y2=\"{line}\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                from + 22.0
            );
            write_text(&mut svg, (from + 28.0, line + 4.0), "start", curve.title);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Curve {
    fn write(&self, svg: &mut String, (x, y): (&Axis, &Axis), colour: &str) {
        let place = |point: &Point| format!("{:.1},{:.1}", x.at(point.x), y.at(point.y));
        let line: Vec<_> = self.points.iter().map(place).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for point in &self.points {
            let at = x.at(point.x);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1},{:.1}V{:.1}\" stroke=\"{colour}\"/><circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                y.at(point.low),
                y.at(point.high),
                y.at(point.y),
            );
        }
    }
}

fn write_axes(svg: &mut String, x: &Axis, y: &Axis) {
    let (right, bottom) = (LEFT + AREA.0, TOP + AREA.1);
    for tick in x.ticks(4.0) {
        let at = x.at(tick);
        let _ = writeln!(svg, "<path d=\"M{at:.1},{TOP}V{bottom}\" stroke=\"#ddd\"/>");
        write_text(svg, (at, bottom + 18.0), "middle", &octets(tick));
    }
    for decade in y.ticks(10.0) {
        let at = y.at(decade);
        let _ = writeln!(svg, "<path d=\"M{LEFT},{at:.1}H{right}\" stroke=\"#bbb\"/>");
        write_text(svg, (LEFT - 6.0, at + 4.0), "end", &decade.to_string());
        for step in [2.0, 5.0]
            .map(|step| step * decade)
            .into_iter()
            .filter(|step| *step < y.to)
        {
            let at = y.at(step);
            let _ = writeln!(svg, "<path d=\"M{LEFT},{at:.1}H{right}\" stroke=\"#eee\"/>");
            write_text(svg, (LEFT - 6.0, at + 4.0), "end", &step.to_string());
        }
    }
}

fn octets(size: f64) -> String {
    match size {
        1_048_576.0.. => format!("{}M", size / 1_048_576.0),
        1024.0.. => format!("{}K", size / 1024.0),
        _ => size.to_string(),
    }
}

fn write_text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{escaped}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)]) -> Plot {
        let point = |&(x, y)| Point {
            x,
            low: y / 2.0,
            y,
            high: y * 2.0,
        };
        Plot {
            title: "a < b & c".into(),
            x: "octets",
            y: "Gb/s",
            curves: vec![Curve {
                title: "one & only",
                points: points.iter().map(point).collect(),
            }],
        }
    }

    fn number(node: &roxmltree::Node<'_, '_>, attribute: &str) -> f64 {
        node.attribute(attribute).unwrap().parse().unwrap()
    }

    #[test]
    fn it_is_well_formed_and_shows_each_point_inside() {
        let svg = plot(&[(64.0, 0.5), (4096.0, 5.0), (65536.0, 40.0)]).svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let nodes = || document.descendants();
        assert!(nodes().any(|node| node.text() == Some("a < b & c")));
        let circles: Vec<_> = nodes().filter(|node| node.has_tag_name("circle")).collect();
        assert_eq!(circles.len(), 3);
        for circle in &circles {
            let (x, y) = (number(circle, "cx"), number(circle, "cy"));
            assert!((LEFT..=LEFT + AREA.0).contains(&x), "{svg}");
            assert!((TOP..=TOP + AREA.1).contains(&y), "{svg}");
        }
        // More is higher and to the right.
        let order = |attribute| circles.iter().map(move |circle| number(circle, attribute));
        assert!(
            order("cx").is_sorted() && order("cy").map(|y| -y).is_sorted(),
            "{svg}"
        );
    }

    #[test]
    fn axes_span_all_values_and_ticks_stand_where_they_say() {
        let axis = Axis::over([0.3, 42.0].into_iter(), 10.0, 0.0, 300.0);
        assert!((axis.from - 0.1).abs() < 1e-9 && (axis.to - 100.0).abs() < 1e-9);
        let ticks: Vec<_> = axis.ticks(10.0).map(|tick| axis.at(tick).round()).collect();
        assert_eq!(ticks, [0.0, 100.0, 200.0, 300.0]);
    }

    #[test]
    fn nothing_measured_is_an_empty_plot() {
        let svg = plot(&[]).svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        assert!(
            !document
                .descendants()
                .any(|node| node.has_tag_name("circle")),
            "{svg}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
