//! What is drawn.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::top::app::{App, Lost};
use crate::top::model::Model;
use crate::top::order::{Key, Order};
use crate::top::sample::Flows;
use crate::top::style::Look;
use crate::top::{once, view};

const SECOND: Duration = Duration::from_secs(1);

/// Half a minute of a busy switch, whose busiest port was told of with its connections.
fn scene() -> (Model, App) {
    let mut model = Model::default();
    for n in 30..60 {
        let mut sample = busy_at(n * n / 30, n as f64);
        let port = "web-frontend-1".to_owned();
        let flows = Flows { port, count: 96, held: 2 << 20, retained: 900_000, ..Flows::default() };
        sample.flows = Some(Flows { in_loss: 2, ..flows });
        model.take(sample);
    }
    (model, App::new(SECOND))
}

/// The picture on a terminal of that size.
fn picture(model: &Model, app: &mut App, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look::new(true, true);
    let draw = |frame: &mut ratatui::Frame<'_>| view::draw(frame.buffer_mut(), look, model, app);
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let lines: Vec<String> = (0..buffer.area.height).map(|y| once::line(buffer, y)).collect();
    lines.join("\n")
}

/// The line that has `words`, and where it is.
fn find(buffer: &Buffer, words: &str) -> (u16, u16) {
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        if let Some(byte) = line.find(words) {
            return (line[..byte].chars().count() as u16, y);
        }
    }
    panic!("{words:?} is not in\n{}", text(buffer));
}

#[test]
fn a_terminal_of_80_by_24() {
    let (model, mut app) = scene();
    insta::assert_snapshot!(text(&picture(&model, &mut app, 80, 24)));
}

#[test]
fn a_larger_one() {
    let (model, mut app) = scene();
    app.order = Order { key: Key::Drops, reversed: false };
    insta::assert_snapshot!(text(&picture(&model, &mut app, 120, 40)));
}

#[test]
fn a_narrow_and_a_low_one() {
    let (model, mut app) = scene();
    insta::assert_snapshot!(text(&picture(&model, &mut app, 44, 10)));
}

#[test]
fn keys_and_columns_are_explained_on_one_page() {
    let (model, mut app) = scene();
    app.is_helping = true;
    insta::assert_snapshot!(text(&picture(&model, &mut app, 80, 24)));
}

#[test]
fn a_switch_that_does_not_answer_leaves_the_picture_and_says_why() {
    let (model, mut app) = scene();
    app.lost = Some(Lost { why: "floodway is not running".to_owned(), since: Some(9 * SECOND) });
    let buffer = picture(&model, &mut app, 80, 24);
    let (x, y) = find(&buffer, "NO ANSWER, last answer 9 s ago: floodway is not running");
    assert_eq!((x, y), (0, 23));
    let style = buffer[(0, 23)].style();
    assert!(style.add_modifier.contains(Modifier::REVERSED | Modifier::BOLD));
    let (_, y) = find(&buffer, "db1 ");
    assert!(buffer[(0, y)].style().add_modifier.contains(Modifier::DIM), "it is old");
}

#[test]
fn what_is_wrong_is_red_and_all_else_has_the_terminals_own_colours() {
    let (model, mut app) = scene();
    let buffer = picture(&model, &mut app, 80, 24);
    let (_, row) = find(&buffer, " db1 ");
    let red: Vec<_> = (0..80).filter(|&x| buffer[(x, row)].fg == Color::Red).collect();
    assert!(!red.is_empty());
    let colours = buffer.content().iter().filter(|cell| {
        (cell.fg != Color::Reset && cell.fg != Color::Red) || cell.bg != Color::Reset
    });
    assert_eq!(colours.count(), 0);
}

#[test]
fn without_colours_there_is_none() {
    let (model, mut app) = scene();
    app.lost = Some(Lost { why: "gone".to_owned(), since: None });
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    view::draw(&mut buffer, Look::new(false, false), &model, &mut app);
    let cells = buffer.content();
    assert!(cells.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    assert!(cells.iter().all(|cell| cell.symbol().is_ascii()), "{}", text(&buffer));
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let (model, mut app) = scene();
    for (width, height) in [(1, 1), (2, 3), (9, 5), (20, 17), (20, 18), (400, 3), (300, 200)] {
        for is_helping in [false, true] {
            app.is_helping = is_helping;
            picture(&model, &mut app, width, height);
        }
    }
    picture(&Model::default(), &mut App::new(SECOND), 80, 24);
}

#[test]
fn the_selected_row_of_many_is_on_the_screen() {
    let ports = (0..500).map(|n| port(&format!("vm{n}"), n, 0)).collect();
    let mut model = Model::default();
    model.take(sample(1.0, ports));
    let mut app = App::new(SECOND);
    app.order.key = Key::Name;
    app.selected = Some("vm250".to_owned());
    let buffer = picture(&model, &mut app, 80, 24);
    let (_, y) = find(&buffer, " vm250 ");
    assert!(buffer[(0, y)].style().add_modifier.contains(Modifier::REVERSED));
}

#[test]
fn names_of_others_do_no_harm() {
    let mut model = Model::default();
    model.take(sample(1.0, vec![port("\x1b[2J\u{200b}ünï\tcode-and-very-long-indeed", 1, 1)]));
    let buffer = picture(&model, &mut App::new(SECOND), 80, 24);
    assert!(buffer.content().iter().all(|cell| !cell.symbol().contains('\x1b')));
}

#[test]
fn a_filter_is_seen_while_it_is_typed_and_after() {
    let (model, mut app) = scene();
    (app.filter, app.is_typing) = ("db".to_owned(), true);
    let buffer = picture(&model, &mut app, 80, 24);
    find(&buffer, "filter: db_");
    find(&buffer, "!db10");
    assert!(!text(&buffer).contains("-spare"));
    (app.filter, app.is_typing) = ("nothing".to_owned(), false);
    let buffer = picture(&model, &mut app, 80, 24);
    find(&buffer, "no port fits the filter");
    find(&buffer, "filter: nothing   / change");
}

/// A switch whose second port has been dropping, and whose uplink's device has been away, for a second.
fn faults() -> Model {
    let at = |n: u64| {
        let mut sample = busy(n);
        sample.activity.uplinks[0].tx.drops = Drops::from([("uplink_error".to_owned(), 20 * n)]);
        let ns = (0.4 * n as f64 * 1e9) as u64;
        sample.threads = HashMap::from([(1234, ThreadTimes::one(ns, ns))]);
        sample
    };
    let mut model = Model::default();
    [at(1), at(2)].into_iter().for_each(|sample| model.take(sample));
    model
}

#[test]
fn the_text_names_what_is_wrong_with_ports_and_uplinks() {
    let (model, mut app) = (faults(), App::new(SECOND));
    app.is_terse = true;
    let text = once::text(&model, &mut app);
    let (_, findings) = text.split_once("\n\n").expect("findings behind the table");
    let expected = "\
web-frontend-1: vCPUs wait for a CPU, 40%
db1: dropped rx queue_full 250/s: the guest gives no receive buffers back; it has no CPU time, or its driver hangs
db1: dropped tx spoofed_mac 1/s: the guest sends from a MAC address that is not the port's
up0: dropped tx uplink_error 20/s: its device is down or gone, or has a smaller MTU";
    assert_eq!(findings, expected);
    app.filter = "spare".to_owned();
    assert!(!once::text(&model, &mut app).contains("db1"), "what is filtered is not named");
}

#[test]
fn the_picture_names_what_an_uplink_drops() {
    let (model, mut app) = (faults(), App::new(SECOND));
    find(&picture(&model, &mut app, 80, 24), "drops 20/s uplink_error  work 10%");
}
