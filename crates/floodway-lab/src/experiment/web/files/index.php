<?php
// A calendar of events in the manner of Apache Olio: pages made of rendered fragments from the cache and of
// records and photos from the database. As PHP does without persistent connections, each request makes its own.

const EVENTS = 200;
const TAGS = 20;
const PEOPLE = 100;
const PHOTOS = 40;
const PHOTO_BYTES = 100000;
const FRAGMENT_SECONDS = 10;

function database(): Redis
{
    $database = new Redis();
    $database->connect(getenv('DATABASE'), 6379, 60);
    return $database;
}

function cache(): Memcached
{
    $cache = new Memcached();
    // A fragment has the size that it has.
    $cache->setOption(Memcached::OPT_COMPRESSION, false);
    $cache->setOption(Memcached::OPT_TCP_NODELAY, true);
    $cache->setOption(Memcached::OPT_CONNECT_TIMEOUT, 60000);
    $cache->addServer(getenv('CACHE'), 11211);
    return $cache;
}

// A rendered fragment: from the cache, or made and stored there.
function fragment(Memcached $cache, string $name, callable $render): string
{
    $html = $cache->get($name);
    if ($html === false) {
        $html = $render();
        $cache->set($name, $html, FRAGMENT_SECONDS);
    }
    return $html;
}

function records(Redis $database, array $keys): array
{
    $pipeline = $database->multi(Redis::PIPELINE);
    foreach ($keys as $key) {
        $pipeline->hGetAll($key);
    }
    return $pipeline->exec();
}

function summary(array $event): string
{
    $title = htmlspecialchars($event['title']);
    $text = htmlspecialchars(substr($event['description'], 0, 600));
    return "<li><a href=\"/event/{$event['id']}\"><img src=\"/photo/{$event['photo']}\">$title</a><p>$text</li>\n";
}

function summaries(Redis $database, array $ids): string
{
    return implode('', array_map('summary', records($database, array_map(fn($id) => "event:$id", $ids))));
}

function page(string $title, string ...$parts): void
{
    header('Content-Type: text/html');
    echo "<!DOCTYPE html><title>$title</title><h1>$title</h1>\n", implode('', $parts);
}

function home(): void
{
    $database = database();
    $cache = cache();
    $tags = fragment($cache, 'tags', fn() => implode(', ', array_map(fn($tag) => "tag $tag", range(0, TAGS - 1))));
    $upcoming = fragment($cache, 'upcoming', fn() => summaries($database, $database->zRevRange('upcoming', 0, 29)));
    $recent = summaries($database, $database->zRevRange('recent', 0, 9));
    page('Events', $tags, '<ul>', $upcoming, '</ul><h2>New</h2><ul>', $recent, '</ul>');
}

function tag(int $tag): void
{
    $database = database();
    $ids = $database->zRevRange("tag:$tag", 0, 19);
    $sidebar = fragment(cache(), "related:$tag", fn() => summaries($database, $database->zRange("tag:$tag", 0, 9)));
    page("Tag $tag", '<ul>', summaries($database, $ids), '</ul><aside>', $sidebar, '</aside>');
}

function event(int $id): void
{
    $database = database();
    [$event] = records($database, ["event:$id"]);
    $comments = $database->lRange("comments:$id", 0, 39);
    $people = fragment(cache(), "people:$id", function () use ($database, $id) {
        $keys = array_map(fn($person) => "person:$person", $database->sMembers("attending:$id"));
        return implode('', array_map(fn($person) => "<li>{$person['name']}: {$person['about']}</li>\n", records($database, $keys)));
    });
    page($event['title'], $event['description'], '<ul>', $people, '</ul>', ...array_map(fn($text) => "<p>$text</p>\n", $comments));
}

function photo(int $id): void
{
    header('Content-Type: image/jpeg');
    echo database()->get("photo:$id");
}

function comment(int $id): void
{
    $database = database();
    $database->rPush("comments:$id", file_get_contents('php://input'));
    $database->lTrim("comments:$id", -40, -1);
    cache()->delete("people:$id");
    page('Thank you');
}

// Bytes that look random, always the same for a name. They repeat: nobody compresses them, and hashing takes long.
function filler(string $name, int $bytes): string
{
    $block = hash('sha512', $name, true);
    return substr(str_repeat($block, intdiv($bytes, strlen($block)) + 1), 0, $bytes);
}

function words(string $name, int $bytes): string
{
    return substr(chunk_split(bin2hex(filler($name, intdiv($bytes, 2) + 1)), 7, ' '), 0, $bytes);
}

// Makes all records anew.
function setup(): void
{
    cache()->flush();
    // One answer for all: the database is a VM that waits for its CPU.
    $database = database()->multi(Redis::PIPELINE);
    $database->flushAll();
    for ($id = 0; $id < PHOTOS; $id++) {
        $database->set("photo:$id", filler("photo $id", PHOTO_BYTES));
    }
    for ($id = 0; $id < PEOPLE; $id++) {
        $database->hMSet("person:$id", ['name' => "person $id", 'about' => words("person $id", 300)]);
    }
    for ($id = 0; $id < EVENTS; $id++) {
        $database->hMSet("event:$id", [
            'id' => $id,
            'title' => "event $id",
            'photo' => $id % PHOTOS,
            'description' => words("event $id", 2000),
        ]);
        $database->zAdd('upcoming', $id, $id);
        $database->zAdd('recent', EVENTS - $id, $id);
        for ($other = 0; $other < 3; $other++) {
            $database->zAdd('tag:' . ($id + 7 * $other) % TAGS, $id, $id);
        }
        for ($other = 0; $other < 20; $other++) {
            $database->sAdd("attending:$id", ($id + $other * 3) % PEOPLE);
        }
        for ($other = 0; $other < 40; $other++) {
            $database->rPush("comments:$id", words("comment $id $other", 300));
        }
    }
    $database->exec();
    page('Ready');
}

[, $operation, $number] = explode('/', $_SERVER['REQUEST_URI'] . '/', 4);
match ($operation) {
    '' => home(),
    'tag' => tag((int) $number),
    'event' => event((int) $number),
    'photo' => photo((int) $number),
    'comment' => comment((int) $number),
    'setup' => setup(),
    default => http_response_code(404),
};
