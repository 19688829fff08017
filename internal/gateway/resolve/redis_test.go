package resolve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// patience is for what has to happen, on a machine that is very busy.
const patience = 60 * time.Second

// redisServer is a real Redis, on a separate socket.
type redisServer struct {
	url    string
	socket string
	more   []string // arguments
	cmd    *exec.Cmd
}

func startRedis(t testing.TB, more ...string) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no redis-server; install it")
		}
		t.Skip("*** There is no redis-server: what Redis does is NOT tested. ***")
	}
	dir, err := os.MkdirTemp("", "redis") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &redisServer{socket: filepath.Join(dir, "s"), more: more}
	s.url = "unix://" + s.socket
	s.start(t)
	t.Cleanup(s.stop)
	return s
}

func (s *redisServer) start(t testing.TB) {
	t.Helper()
	args := []string{"--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no", "--dir",
		filepath.Dir(s.socket)}
	s.cmd = exec.Command("redis-server", append(args, s.more...)...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis answers", func() bool {
		_, err := s.do("PING")
		return err == nil
	})
}

// do sends one command to the server.
func (s *redisServer) do(command string, args ...any) (any, error) {
	conn, err := redis.Dial("unix", s.socket, redis.DialReadTimeout(patience), redis.DialWriteTimeout(patience))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.Do(command, args...)
}

// get returns the value of a key, or an empty text.
func (s *redisServer) get(key string) string {
	text, _ := redis.String(s.do("GET", key))
	return text
}

func (s *redisServer) exists(key string) bool {
	n, _ := redis.Int(s.do("EXISTS", key))
	return n == 1
}

func (s *redisServer) set(t testing.TB, key, value string) {
	t.Helper()
	if _, err := s.do("SET", key, value); err != nil {
		t.Fatal(err)
	}
}

func (s *redisServer) configure(t testing.TB, key, value string) {
	t.Helper()
	if _, err := s.do("CONFIG", "SET", key, value); err != nil {
		t.Fatal(err)
	}
}

func (s *redisServer) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}

// gatewayOver makes the tiers of one gateway over a node and a Redis.
func gatewayOver(t testing.TB, fake node.Resolver, url string, change ...func(*RedisOptions)) *Tiers {
	t.Helper()
	return newTiers(t, fake, func(o *Options) {
		ro := RedisOptions{URL: url, Timeout: patience, Metrics: o.Metrics, Log: o.Log}
		for _, c := range change {
			c(&ro)
		}
		r, err := NewRedis(ro)
		if err != nil {
			t.Fatal(err)
		}
		o.Redis = r
	})
}

func (s *redisServer) has(t testing.TB, repo, revision string) bool {
	_, key := coder{}.keys(question(repo, revision))
	return s.exists(key)
}

// value is a counter's.
func value(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

func hits(t *Tiers) float64 { return value(t.o.Metrics.redisHit) }

// A gateway finds the answers of another one in Redis, with one request for all.
func TestRedisIsShared(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a")
	var names []string
	fake.mu.Lock()
	for i := range 200 {
		names = append(names, fmt.Sprint("b", i))
		fake.repos[path("a")].refs[names[i]] = uint64(i + 1)
	}
	fake.mu.Unlock()
	one, other := gatewayOver(t, fake, server.url), gatewayOver(t, fake, server.url)
	var page []node.Question
	for _, name := range names {
		page = append(page, question("a", name))
	}
	if _, err := one.Resolve(t.Context(), page); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answers are in Redis", func() bool {
		return server.has(t, "a", names[0]) &&
			server.has(t, "a", names[len(names)-1])
	})
	ask(t, other, "a", "main") // from here on it knows the version
	calls, _ := fake.counts()
	before := commands(t, server, "mget")
	results, err := other.Resolve(t.Context(), page)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil || serialOf(r.ID) != uint64(i+1) || r.Ref != "refs/heads/"+names[i] || r.Type != git.Commit {
			t.Fatalf("%s: %+v", names[i], r)
		}
	}
	if now, _ := fake.counts(); now != calls || hits(other) != 200 {
		t.Errorf("the node was asked %d times; %v found in Redis, want 200", now-calls, hits(other))
	}
	if asked := commands(t, server, "mget") - before; asked != 1 {
		t.Errorf("a page took %d questions to Redis", asked)
	}
	if keys, _ := redis.Strings(server.do("KEYS", "*")); len(keys) < 200 {
		t.Errorf("%d keys", len(keys))
	} else {
		for _, key := range keys {
			if left, _ := redis.Int(server.do("PTTL", key)); len(key) > 80 || left <= 0 {
				t.Fatalf("key %q has %d bytes and lives for %d ms", key, len(key), left)
			}
		}
	}
}

// commands is how often a command was called.
func commands(t *testing.T, s *redisServer, name string) (n int) {
	t.Helper()
	info, _ := redis.String(s.do("INFO", "commandstats"))
	if _, rest, ok := strings.Cut(info, "cmdstat_"+name+":calls="); ok {
		fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
	}
	return n
}

// After an event, no older value is read from Redis or written to it.
func TestRedisIsOlder(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a")
	one, other := gatewayOver(t, fake, server.url), gatewayOver(t, fake, server.url)
	wantSerial(t, one, "a", 1)
	ask(t, other, "a", "HEAD")
	eventually(t, "both watch, and the value is in Redis", func() bool {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return len(fake.watchers) == 2 && server.has(t, "a", "main")
	})
	_, key := coder{}.keys(question("a", "main"))
	before := server.get(key)
	want := fake.move(path("a"))
	eventually(t, "the event came", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return other.repos[path("a")].heard.Generation == want
	})
	server.set(t, key, before) // as a slow gateway does
	wantSerial(t, other, "a", want)
	eventually(t, "the newer value is in Redis",
		func() bool { return server.get(key) != before })
	// A gateway that was cut off has the old state still, and does not bring it back.
	old, ok := coder{}.decode(question("a", "main"), before)
	if !ok {
		t.Fatal("the value is none")
	}
	newer := server.get(key)
	one.o.Redis.put([]stored{{question("a", "main"), old}})
	one.o.Redis.put([]stored{{question("a", "mark"),
		node.Answer{ID: oid(9), Type: git.Commit, Ref: "refs/heads/mark", Version: git.Version{Epoch: 9}}}})
	eventually(t, "what was put later has arrived", func() bool { return server.has(t, "a", "mark") })
	if server.get(key) != newer {
		t.Error("an older value took the place of a newer one")
	}
}

// The order of writes, alone.
func TestRedisOrder(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	r, err := NewRedis(RedisOptions{URL: server.url, Timeout: patience, Metrics: NewMetrics(nil), Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	q := question("a", "main")
	fence, key := r.coder.keys(q)
	valueOf := func(v git.Version) write {
		text, _ := r.coder.encode(stored{q, node.Answer{ID: oid(v.Generation), Type: git.Commit, Ref: "HEAD", Version: v}})
		return write{fence: fence, value: key, order: order(v), text: string(text)}
	}
	version := func(incarnation string, epoch, generation uint64) git.Version {
		return git.Version{Incarnation: incarnation, Epoch: epoch, Generation: generation}
	}
	for _, step := range []struct {
		name  string
		write write
		want  git.Version
	}{
		{"the first", valueOf(version("i", 5, 7)), version("i", 5, 7)},
		{"a newer one", valueOf(version("i", 5, 8)), version("i", 5, 8)},
		{"an older one", valueOf(version("i", 5, 7)), version("i", 5, 8)},
		{"the same again", valueOf(version("i", 5, 8)), version("i", 5, 8)},
		{"much greater, in decimal and in hexadecimal", valueOf(version("i", 5, 1<<60)), version("i", 5, 1<<60)},
		{"a number that a float does not tell from the one before", valueOf(version("i", 5, 1<<60-1)),
			version("i", 5, 1<<60)},
		{"a new epoch", valueOf(version("i", 6, 1)), version("i", 6, 1)},
		{"the old epoch", valueOf(version("i", 5, 1<<61)), version("i", 6, 1)},
		{"a new incarnation", valueOf(version("j", 6, 2)), version("j", 6, 2)},
		{"the old incarnation", valueOf(version("i", 6, 1)), version("j", 6, 2)},
		{"an event", func() write { w := valueOf(version("j", 6, 9)); w.value = ""; return w }(), version("j", 6, 2)},
		{"older than the event", valueOf(version("j", 6, 8)), version("j", 6, 2)},
		{"as the event", valueOf(version("j", 6, 9)), version("j", 6, 9)},
	} {
		if err := r.writeBatch(t.Context(), []write{step.write}); err != nil {
			t.Fatal(step.name, err)
		}
		if got, ok := r.coder.decode(q, server.get(key)); !ok || got.Version != step.want {
			t.Errorf("%s: Redis has %v, %v; want %v", step.name, got.Version, ok, step.want)
		}
	}
	server.set(t, key, "rubbish")
	server.set(t, fence, "P1 rubbish that is long enough to be an order")
	if err := r.writeBatch(t.Context(), []write{valueOf(version("i", 1, 1))}); err != nil {
		t.Error(err)
	}
	if got, _ := r.coder.decode(q, server.get(key)); got.Version != version("i", 1, 1) {
		t.Errorf("rubbish is not overwritten: %v", got)
	}
}

// A Redis that hangs is waited for once, and asked again when it goes on.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a")
	gateway := gatewayOver(t, fake, server.url, func(o *RedisOptions) { o.Timeout = 200 * time.Millisecond })
	ask(t, gateway, "a", "HEAD")
	if err := server.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wantSerial(t, gateway, "a", 1)
	if !gateway.o.Redis.Bypassed() {
		t.Error("a Redis that hangs is not bypassed")
	}
	missed := value(gateway.o.Metrics.failures.WithLabelValues("read"))
	for i := range 100 {
		ask(t, gateway, "a", fmt.Sprint("x", i))
	}
	if now := value(gateway.o.Metrics.failures.WithLabelValues("read")); now > missed {
		t.Errorf("%v questions waited for a Redis that is bypassed", now-missed)
	}
	if err := server.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Redis is asked again", func() bool { return !gateway.o.Redis.Bypassed() })
}

// A Redis that is full is read, and no request fails.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a")
	gateway := gatewayOver(t, fake, server.url)
	wantSerial(t, gateway, "a", 1)
	eventually(t, "a value is written", func() bool { return server.has(t, "a", "main") })
	server.configure(t, "maxmemory", "1")
	ask(t, gateway, "a", "HEAD")
	eventually(t, "a write fails", func() bool { return value(gateway.o.Metrics.failures.WithLabelValues("write")) > 0 })
	if gateway.o.Redis.Bypassed() {
		t.Error("a Redis that is full is not read any more")
	}
	other := gatewayOver(t, fake, server.url)
	ask(t, other, "a", "HEAD")
	wantSerial(t, other, "a", 1)
	if hits(other) != 1 {
		t.Error("what is in a full Redis is not found")
	}
}

// A Redis that is killed and comes back empty, without the script.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a")
	gateway := gatewayOver(t, fake, server.url)
	wantSerial(t, gateway, "a", 1)
	eventually(t, "a value is written", func() bool { return server.has(t, "a", "main") })
	server.stop()
	for i := range 20 {
		ask(t, gateway, "a", fmt.Sprint("x", i))
	}
	if !gateway.o.Redis.Bypassed() {
		t.Error("a Redis that is gone is not bypassed")
	}
	server.start(t)
	eventually(t, "Redis is asked again", func() bool { return !gateway.o.Redis.Bypassed() })
	ask(t, gateway, "a", "HEAD")
	eventually(t, "values are written again", func() bool {
		ask(t, gateway, "a", "HEAD")
		fake.move(path("a"))
		return server.has(t, "a", "HEAD")
	})
}

func TestRedisIsDown(t *testing.T) {
	t.Parallel()
	fake := newFakeNode("a")
	gateway := gatewayOver(t, fake, "unix://"+filepath.Join(t.TempDir(), "none"))
	ask(t, gateway, "a", "HEAD")
	wantSerial(t, gateway, "a", 1)
	eventually(t, "it is bypassed", gateway.o.Redis.Bypassed)
	for _, bad := range []string{"redis://u:secret@h", "http://h", "redis://h/x", "redis://h?pool_size=9", "\x00"} {
		if _, err := NewRedis(RedisOptions{URL: bad, Metrics: NewMetrics(nil), Log: discard}); err == nil ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Values of other questions, and damaged ones, are ignored.
func TestRedisLies(t *testing.T) {
	t.Parallel()
	server, fake := startRedis(t), newFakeNode("a", "b")
	secret := func(o *RedisOptions) { o.Secret = []byte("a secret that gateways share") }
	gateway := gatewayOver(t, fake, server.url, secret)
	ask(t, gateway, "a", "HEAD")
	ask(t, gateway, "b", "HEAD")
	eventually(t, "values are written", func() bool { return server.has(t, "a", "HEAD") && server.has(t, "b", "HEAD") })
	fake.mu.Lock()
	v := fake.repos[path("a")].version
	fake.mu.Unlock()
	for name, lie := range map[string]func(stored) string{
		"marked with another secret": func(s stored) string { return encoded(coder{[]byte("another secret")}, s) },
		"without a secret":           func(s stored) string { return encoded(coder{}, s) },
		"of another question": func(s stored) string {
			s.question.Revision += "x"
			return encoded(gateway.o.Redis.coder, s)
		},
		"of another repository": func(s stored) string {
			s.question.Repository = path("b")
			return encoded(gateway.o.Redis.coder, s)
		},
		"of another incarnation": func(s stored) string {
			s.answer.Version.Incarnation = "other"
			return encoded(gateway.o.Redis.coder, s)
		},
		"of the future": func(s stored) string {
			s.answer.Version.Generation++
			return encoded(gateway.o.Redis.coder, s)
		},
		"empty":   func(stored) string { return "" },
		"rubbish": func(stored) string { return strings.Repeat("x", 500) },
		"huge":    func(stored) string { return strings.Repeat("y", maxElement) },
	} {
		revision := strings.ReplaceAll(name, " ", "-")
		fake.mu.Lock()
		fake.repos[path("a")].refs[revision] = 1
		fake.mu.Unlock()
		q := question("a", revision)
		_, key := coder{}.keys(q)
		server.set(t, key,
			lie(stored{q, node.Answer{ID: oid(666), Type: git.Commit, Ref: "refs/heads/" + revision, Version: v}}))
		if got := ask(t, gateway, "a", revision); got.Err != nil || serialOf(got.ID) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
	if hits(gateway) != 0 {
		t.Errorf("%v values were believed", hits(gateway))
	}
	// One that goes on to lie is bypassed.
	for i := range maxGarbage {
		name := fmt.Sprint("x", i)
		_, key := coder{}.keys(question("a", name))
		server.set(t, key, "rubbish")
		ask(t, gateway, "a", name)
	}
	if !gateway.o.Redis.Bypassed() {
		t.Error("a Redis full of rubbish is not bypassed")
	}
	eventually(t, "it gets another chance", func() bool { return !gateway.o.Redis.Bypassed() })
}

// A server in place of a Redis may send any bytes. The gateway survives them and answers requests.
func TestRedisSpeaksRubbish(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"a huge value":             "*1\r\n$1099511627776\r\n",
		"a huge array":             "*2147483647\r\n",
		"arrays in arrays":         strings.Repeat("*2000\r\n", 1000),
		"a line without end":       "+" + strings.Repeat("x", 1<<20),
		"negative lengths":         "*-7\r\n$-9\r\n",
		"another protocol":         "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
		"zeros":                    strings.Repeat("\x00", 100_000),
		"too few values":           "*0\r\n",
		"too many values":          "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
		"a number":                 ":1\r\n",
		"a value that is cut off":  "*1\r\n$100\r\nabc",
		"an error":                 "-ERR no\r\n",
		"nothing at all":           "",
		"a number that is too big": "*99999999999999999999999\r\n",
		"a map":                    "%2\r\n$1\r\na\r\n:1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			var asked atomic.Int64
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go answer(conn, reply, &asked)
				}
			}()
			fake := newFakeNode("a")
			gateway := gatewayOver(t, fake, "redis://"+listener.Addr().String(),
				func(o *RedisOptions) { o.Timeout = 300 * time.Millisecond })
			ask(t, gateway, "a", "HEAD")
			for i := range 2 * maxGarbage {
				wantSerial(t, gateway, "a", 1)
				ask(t, gateway, "a", fmt.Sprint("x", i))
			}
			eventually(t, "it is bypassed", func() bool { return failures(gateway) > 0 })
			if hits(gateway) != 0 {
				t.Error("it was believed")
			}
		})
	}
}

func encoded(c coder, s stored) string {
	text, _ := c.encode(s)
	return string(text)
}

func failures(t *Tiers) (sum float64) {
	for _, what := range []string{"read", "write", "probe"} {
		sum += value(t.o.Metrics.failures.WithLabelValues(what))
	}
	return sum
}

// answer is a Redis that says hello as one, and then always the same.
func answer(conn net.Conn, reply string, asked *atomic.Int64) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch word := strings.ToLower(strings.TrimSpace(line)); word {
		case "hello", "client", "ping", "select":
			if _, err := io.WriteString(conn, "+OK\r\n"); err != nil {
				return
			}
		case "mget", "evalsha":
			asked.Add(1)
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	}
}

// A batch is one question, and what is longer is several.
func TestRedisBatches(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	r, err := NewRedis(RedisOptions{URL: server.url, Timeout: patience, Metrics: NewMetrics(nil), Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	v := git.Version{Incarnation: "i", Epoch: 1, Generation: 1}
	var all []stored
	for i := range 2*readBatch + 10 {
		all = append(all, stored{question("a", fmt.Sprint("r", i)),
			node.Answer{ID: oid(uint64(i + 1)), Type: git.Commit, Ref: "HEAD", Version: v}})
	}
	r.put(all)
	eventually(t, "the last one is written", func() bool {
		_, key := r.coder.keys(all[len(all)-1].question)
		return server.exists(key)
	})
	wanted := make([]stored, len(all))
	for i, s := range all {
		wanted[i] = stored{s.question, node.Answer{Version: v}}
	}
	for i, ok := range r.get(context.Background(), wanted) {
		if !ok || wanted[i] != all[i] {
			t.Fatalf("%d: %v, %v", i, ok, wanted[i])
		}
	}
}
