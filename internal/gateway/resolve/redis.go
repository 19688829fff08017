package resolve

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/gomodule/redigo/redis"

	"github.com/packhorse-git/packhorse/internal/git"
)

// RedisOptions configure a Redis.
type RedisOptions struct {
	URL      string        // redis://[USER@]HOST[:PORT][/DB], rediss:// for TLS, or unix:///PATH
	Password func() string // returns the current password; nil or an empty result means none
	Secret   []byte        // signs values; without it every writer is trusted
	// Authorities are trusted for TLS. Nil means those of the system.
	Authorities *x509.CertPool

	Timeout time.Duration // timeout of a look-up. Zero means 50 ms.
	TTL     time.Duration // of values. Zero means one minute.

	Metrics *Metrics
	Log     *slog.Logger
}

// Redis shares answers between gateways. It is optional: an error counts as a miss. After an error one look-up has
// waited for the timeout, and later ones bypass Redis. A probe each second finds out when it is back. It is safe for
// concurrent use.
type Redis struct {
	o       RedisOptions
	pool    *redis.Pool
	breaker circuitbreaker.CircuitBreaker[any]
	coder   coder
	garbage atomic.Int64 // consecutive replies with invalid values

	writes  chan write
	stop    context.CancelFunc
	running sync.WaitGroup
}

// write is a value that will be written to Redis.
type write struct {
	fence, value string // keys; without a value key only the fence is written
	order, text  string
}

const (
	probeEvery  = time.Second
	writeLimit  = time.Second      // of one batch of writes
	writePause  = 10 * time.Second // after Redis refused a write, for example because it is full
	maxWrites   = 4096             // waiting writes
	writeBatch  = 128
	readBatch   = 1000
	maxGarbage  = 8 // consecutive replies with invalid values, after which Redis is bypassed
	connections = 16
	idle        = time.Second // after which a connection is tested before it is used
)

// setNewer writes a value unless there is a newer one, or the repository is known to have a newer version. KEYS: fence,
// value. ARGV: order, value, time to live of the value and of the fence in ms. An order has 34 bytes. An invalid one
// counts as the oldest.
var setNewer = redis.NewScript(-1, `
local function order(key)
	local s = redis.call("GETRANGE", key, 0, 33)
	if string.match(s, "^P1%x+$") and #s == 34 then return s end
	return ""
end
if order(KEYS[1]) > ARGV[1] then return 0 end
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[4])
if KEYS[2] then
	if order(KEYS[2]) > ARGV[1] then return 0 end
	redis.call("SET", KEYS[2], ARGV[2], "PX", ARGV[3])
end
return 1
`)

// NewRedis creates a Redis, which need not be reachable. The caller has to close it.
func NewRedis(o RedisOptions) (*Redis, error) {
	if o.Timeout <= 0 {
		o.Timeout = 50 * time.Millisecond
	}
	if o.TTL <= 0 {
		o.TTL = time.Minute
	}
	address, err := ParseRedisURL(o.URL)
	if err != nil {
		return nil, err
	}
	r := &Redis{o: o, coder: coder{o.Secret}, writes: make(chan write, maxWrites)}
	r.pool = &redis.Pool{MaxIdle: connections, MaxActive: connections, Wait: true, TestOnBorrowContext: r.test,
		DialContext: func(ctx context.Context) (redis.Conn, error) { return r.dial(ctx, address) }}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	opened := make(chan struct{}, 1)
	r.breaker = circuitbreaker.NewBuilder[any]().WithFailureThreshold(1).WithDelay(probeEvery).
		OnOpen(func(circuitbreaker.StateChangedEvent) {
			select {
			case opened <- struct{}{}:
			default:
			}
		}).Build()
	r.running.Go(func() { r.probe(ctx, opened) })
	r.running.Go(func() { r.write(ctx) })
	return r, nil
}

// dial connects to Redis.
func (r *Redis) dial(ctx context.Context, a RedisAddress) (redis.Conn, error) {
	options := []redis.DialOption{redis.DialReadTimeout(r.o.Timeout), redis.DialWriteTimeout(r.o.Timeout),
		redis.DialDatabase(a.Database), redis.DialUsername(a.User),
		redis.DialContextFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
			defer cancel()
			dial := (&net.Dialer{}).DialContext
			if a.TLS {
				dial = (&tls.Dialer{Config: &tls.Config{RootCAs: r.o.Authorities, MinVersion: tls.VersionTLS12}}).DialContext
			}
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &guarded{Conn: conn}, nil
		})}
	if r.o.Password != nil {
		options = append(options, redis.DialPassword(r.o.Password()))
	}
	conn, err := redis.DialContext(ctx, a.Network, a.Address, options...)
	if err != nil { // not a chain: an error of ctx means that all connections were in use
		return nil, errors.New("connect: " + err.Error())
	}
	return conn, nil
}

// test returns an error if a connection was closed by the server while it was idle.
func (r *Redis) test(ctx context.Context, conn redis.Conn, used time.Time) error {
	if time.Since(used) < idle || ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := redis.DoWithTimeout(conn, left(ctx), "PING")
	return err
}

// left returns the time until the deadline of ctx.
func left(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return max(time.Until(deadline), time.Millisecond) // zero would mean no timeout
}

// RedisAddress is the address of a Redis.
type RedisAddress struct {
	Network, Address string
	User             string
	Database         int
	TLS              bool
}

// ParseRedisURL parses the address of a Redis. It refuses passwords, because addresses are not secret.
func ParseRedisURL(address string) (RedisAddress, error) {
	invalid := errors.New("invalid URL: want redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH")
	u, err := url.Parse(address)
	if err != nil {
		return RedisAddress{}, invalid
	}
	if _, has := u.User.Password(); has {
		return RedisAddress{}, errors.New("invalid URL: it has a password; use redis_password_file")
	}
	a := RedisAddress{User: u.User.Username()}
	database := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		if u.RawQuery != "" {
			return RedisAddress{}, errors.New("invalid URL: it has parameters; want redis://HOST:PORT/DB")
		}
		a.Network, a.TLS = "tcp", u.Scheme == "rediss"
		a.Address = net.JoinHostPort(cmp.Or(u.Hostname(), "localhost"), cmp.Or(u.Port(), "6379"))
	case "unix":
		if !filepath.IsAbs(u.Path) || u.Host != "" {
			return RedisAddress{}, invalid
		}
		a.Network, a.Address, database = "unix", u.Path, u.Query().Get("db")
	default:
		return RedisAddress{}, invalid
	}
	if a.Database, err = strconv.Atoi(cmp.Or(database, "0")); err != nil || a.Database < 0 {
		return RedisAddress{}, invalid
	}
	return a, nil
}

// Close closes the connections. Waiting writes may be lost.
func (r *Redis) Close() error {
	r.stop()
	r.running.Wait()
	return r.pool.Close()
}

// Bypassed reports whether Redis is bypassed after an error.
func (r *Redis) Bypassed() bool { return !r.breaker.IsClosed() }

// get returns the answers to questions for the given versions, and reports which it found. It sends one request for
// every thousand questions.
func (r *Redis) get(ctx context.Context, wanted []stored) (found []bool) {
	found = make([]bool, len(wanted))
	hits := 0
	for from := 0; from < len(wanted) && r.breaker.IsClosed(); from += readBatch {
		to := min(from+readBatch, len(wanted))
		hits += r.getSome(ctx, wanted[from:to], found[from:to])
	}
	r.o.Metrics.redisHit.Add(float64(hits))
	r.o.Metrics.redisMissed.Add(float64(len(wanted) - hits))
	return found
}

func (r *Redis) getSome(ctx context.Context, wanted []stored, found []bool) (hits int) {
	keys := make([]any, len(wanted))
	for i, w := range wanted {
		_, keys[i] = r.coder.keys(w.question)
	}
	values, err := r.values(ctx, keys)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			r.failed("read", err)
		}
		return 0
	}
	bad := 0
	for i, value := range values {
		if value == nil {
			continue
		}
		text, _ := value.([]byte)
		answer, ok := r.coder.decode(wanted[i].question, string(text))
		switch {
		case !ok:
			bad++
		case answer.Version == wanted[i].answer.Version:
			wanted[i].answer, found[i] = answer, true
			hits++
		}
	}
	r.believe(bad)
	return hits
}

// values returns the values of keys. The error is context.DeadlineExceeded if all connections were in use.
func (r *Redis) values(ctx context.Context, keys []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	conn, err := r.pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	values, err := redis.Values(redis.DoWithTimeout(conn, left(ctx), "MGET", keys...))
	if err != nil { // not a chain, as in dial
		return nil, errors.New(err.Error())
	}
	if len(values) != len(keys) {
		return nil, fmt.Errorf("%d values for %d keys", len(values), len(keys))
	}
	return values, nil
}

// believe bypasses a Redis that repeatedly returns invalid values.
func (r *Redis) believe(bad int) {
	if bad == 0 {
		r.garbage.Store(0)
		return
	}
	if r.garbage.Add(1) >= maxGarbage {
		r.garbage.Store(0)
		r.failed("read", errors.New("its values are damaged, not ours, or marked with another secret"))
	}
}

// failed records a failure. Redis is bypassed from then on.
func (r *Redis) failed(what string, err error) {
	r.o.Metrics.failures.WithLabelValues(what).Inc()
	if !r.breaker.IsClosed() {
		return
	}
	r.breaker.RecordError(err)
	r.o.Metrics.bypassed.Set(1)
	r.o.Log.Warn("Redis failed and is bypassed until it answers again", "what", what, "error", err)
}

// probe checks repeatedly whether a bypassed Redis is back.
func (r *Redis) probe(ctx context.Context, opened <-chan struct{}) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-opened:
			tick.Reset(probeEvery)
			continue
		case <-tick.C:
		}
		if r.breaker.IsClosed() || !r.breaker.TryAcquirePermit() {
			continue
		}
		err := r.ping(ctx)
		if err != nil {
			r.breaker.RecordError(err)
			r.o.Metrics.failures.WithLabelValues("probe").Inc()
			continue
		}
		r.breaker.RecordSuccess()
		r.o.Metrics.bypassed.Set(0)
		r.o.Log.Info("Redis answers again")
	}
}

func (r *Redis) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	conn, err := r.pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = redis.DoWithTimeout(conn, left(ctx), "PING")
	return err
}

// put writes answers in the background.
func (r *Redis) put(known []stored) {
	for _, s := range known {
		if text, ok := r.coder.encode(s); ok {
			fence, value := r.coder.keys(s.question)
			r.enqueue(write{fence: fence, value: value, order: order(s.answer.Version), text: string(text)})
		}
	}
}

// fence writes the current version of a repository in the background. Older answers are not written afterwards.
func (r *Redis) fence(path git.RepoPath, v git.Version) {
	r.enqueue(write{fence: r.coder.fenceKey(path), order: order(v)})
}

func (r *Redis) enqueue(w write) {
	if r.Bypassed() {
		return
	}
	select {
	case r.writes <- w:
	default: // the queue is full
	}
}

// write performs waiting writes until ctx ends.
func (r *Redis) write(ctx context.Context) {
	var paused time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-r.writes:
			batch := []write{first}
			for len(batch) < writeBatch && len(r.writes) > 0 {
				batch = append(batch, <-r.writes)
			}
			if r.Bypassed() || time.Now().Before(paused) {
				continue
			}
			if err := r.writeBatch(ctx, batch); err != nil && ctx.Err() == nil {
				paused = r.refused(err)
			}
		}
	}
}

// refused returns the time until which no values are written after an error. Such a Redis may still be read: it may be
// full, or a replica.
func (r *Redis) refused(err error) (until time.Time) {
	var told redis.Error
	if !errors.As(err, &told) {
		r.failed("write", err)
		return until
	}
	r.o.Metrics.failures.WithLabelValues("write").Inc()
	r.o.Log.Warn("Redis accepts no values", "error", err, "again", writePause)
	return time.Now().Add(writePause)
}

func (r *Redis) writeBatch(ctx context.Context, batch []write) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	conn, err := r.pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = r.runWrites(ctx, conn, batch)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		if err := setNewer.Load(conn); err != nil {
			return err
		}
		return r.runWrites(ctx, conn, batch)
	}
	return err
}

// runWrites sends all writes and then reads their replies. It returns the first error.
func (r *Redis) runWrites(ctx context.Context, conn redis.Conn, batch []write) error {
	ttl := r.o.TTL.Milliseconds()
	for _, w := range batch {
		args := []any{1, w.fence}
		if w.value != "" {
			args = []any{2, w.fence, w.value}
		}
		args = append(args, w.order, w.text, ttl, ttl+fillLimit.Milliseconds())
		if err := setNewer.SendHash(conn, args...); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	var first error
	for range batch {
		if _, err := redis.ReceiveWithTimeout(conn, left(ctx)); err != nil {
			if first = cmp.Or(first, err); conn.Err() != nil {
				break
			}
		}
	}
	return first
}
