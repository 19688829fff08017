package resolve

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	client  *redis.Client
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
)

// setNewer writes a value unless there is a newer one, or the repository is known to have a newer version. KEYS: fence,
// value. ARGV: order, value, time to live of the value and of the fence in ms. An order has 34 bytes. An invalid one
// counts as the oldest.
var setNewer = redis.NewScript(`
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
	quiet()
	client, err := ParseRedisURL(o.URL)
	if err != nil {
		return nil, err
	}
	if client.TLSConfig != nil {
		client.TLSConfig.RootCAs = o.Authorities
	}
	client.Protocol, client.MaxRetries = 2, -1
	client.DialTimeout, client.PoolTimeout = o.Timeout, o.Timeout
	client.DialerRetries = 1
	client.ReadTimeout, client.WriteTimeout, client.ContextTimeoutEnabled = -1, -1, true // each call has its own timeout
	client.PoolSize, client.MaxActiveConns = connections, connections
	client.DisableIdentity = true
	client.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.Password != nil {
		user := client.Username
		client.CredentialsProvider = func() (string, string) { return user, o.Password() }
	}
	dial := redis.NewDialer(client)
	client.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &guarded{Conn: conn}, nil
	}
	r := &Redis{o: o, client: redis.NewClient(client), coder: coder{o.Secret}, writes: make(chan write, maxWrites)}
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

// quiet discards the client's own log lines, because it returns the same information as errors.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

// Printf discards the line.
func (silent) Printf(context.Context, string, ...any) {}

// ParseRedisURL parses the address of a Redis. It refuses passwords, because addresses are not secret.
func ParseRedisURL(address string) (*redis.Options, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("invalid URL: want redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH")
	}
	if _, has := u.User.Password(); has {
		return nil, errors.New("invalid URL: it has a password; use redis_password_file")
	}
	if u.RawQuery != "" && u.Scheme != "unix" {
		return nil, errors.New("invalid URL: it has parameters; want redis://HOST:PORT/DB")
	}
	options, err := redis.ParseURL(address)
	if err != nil {
		return nil, fmt.Errorf("%w; want redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH", err)
	}
	return options, nil
}

// Close closes the connections. Waiting writes may be lost.
func (r *Redis) Close() error {
	r.stop()
	r.running.Wait()
	return r.client.Close()
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
	keys := make([]string, len(wanted))
	for i, w := range wanted {
		_, keys[i] = r.coder.keys(w.question)
	}
	limited, cancel := context.WithTimeout(ctx, r.o.Timeout)
	values, err := r.client.MGet(limited, keys...).Result()
	cancel()
	if err == nil && len(values) != len(keys) {
		err = fmt.Errorf("%d values for %d keys", len(values), len(keys))
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, redis.ErrPoolTimeout) {
			r.failed("read", err)
		}
		return 0
	}
	bad := 0
	for i, value := range values {
		if value == nil {
			continue
		}
		text, _ := value.(string)
		answer, ok := r.coder.decode(wanted[i].question, text)
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
		limited, cancel := context.WithTimeout(ctx, r.o.Timeout)
		err := r.client.Ping(limited).Err()
		cancel()
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
	err := r.runWrites(ctx, batch)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		if err := setNewer.Load(ctx, r.client).Err(); err != nil {
			return err
		}
		return r.runWrites(ctx, batch)
	}
	return err
}

func (r *Redis) runWrites(ctx context.Context, batch []write) error {
	pipe := r.client.Pipeline()
	ttl := r.o.TTL.Milliseconds()
	for _, w := range batch {
		keys := []string{w.fence}
		if w.value != "" {
			keys = append(keys, w.value)
		}
		setNewer.EvalSha(ctx, pipe, keys, w.order, w.text, ttl, ttl+fillLimit.Milliseconds())
	}
	_, err := pipe.Exec(ctx)
	return err
}
