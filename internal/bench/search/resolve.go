package search

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
)

// resolveOptions is a search front end that finds the object ID of each result before it forwards a response.
type resolveOptions struct {
	resolve string
	root    string // of the repositories, for git
	redis   string
}

func (o *resolveOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.resolve, "resolve", "",
		"find the object ID of each result: process, redis, memory or none (default: without a proxy)")
	f.StringVar(&o.root, "root", "", "directory of the server's repositories, for --resolve process")
	f.StringVar(&o.redis, "redis", "",
		"redis://HOST:PORT/DB, for --resolve redis; the run writes keys with the prefix packhorse-bench:")
}

func (o *resolveOptions) check() error {
	switch o.resolve {
	case "", "none", "memory":
	case "process":
		if o.root == "" {
			return errors.New("--resolve process needs --root, the directory of the server's repositories")
		}
	case "redis":
		if o.redis == "" {
			return errors.New("--resolve redis needs --redis redis://HOST:PORT")
		}
	default:
		return fmt.Errorf("--resolve %q: want process, redis, memory or none", o.resolve)
	}
	return nil
}

// front is the proxy in the role of the front end.
type front struct {
	searched *searched // the server behind the proxy
	server   *http.Server
	undo     func()

	finding, total atomic.Int64 // nanoseconds of all requests: finding object IDs, and in total
}

// begin starts the proxy on a free port of the loopback.
func (o *searchOptions) begin(ctx context.Context, s *searched) (*front, error) {
	find, undo, err := o.finder(ctx, s)
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(s.String())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &front{undo: undo}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(base) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return nil
			}
			began := time.Now()
			defer func() { f.finding.Add(int64(time.Since(began))) }()
			for _, m := range s.matches { // those of the first response; all responses have the same
				if err := find(r.Request.Context(), m); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.server = &http.Server{ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began := time.Now()
			proxy.ServeHTTP(w, r)
			f.total.Add(int64(time.Since(began)))
		})}
	go f.server.Serve(l) //nolint:errcheck // it ends with close
	through := *s
	if through.target, err = loadgen.ParseTarget("http://"+l.Addr().String(), false); err != nil {
		return nil, err
	}
	through.target.Auth = s.target.Auth
	f.searched = &through
	return f, nil
}

func (f *front) close() {
	f.server.Close()
	f.undo()
}

// share is the share of finding object IDs in the time of the requests, or nil without requests.
func (f *front) share() *float64 {
	total := f.total.Load()
	if total == 0 {
		return nil
	}
	share := loadgen.Round(float64(f.finding.Load())/float64(total), 5)
	return &share
}

// finder returns the function that finds a result's object ID as --resolve requires.
func (o *searchOptions) finder(ctx context.Context,
	s *searched) (find func(context.Context, searchMatch) error, undo func(), err error) {
	switch o.resolve {
	case "process":
		transport := s.target.Transport()
		return o.byProcess(s, transport), transport.CloseIdleConnections, nil
	case "redis":
		return o.byRedis(ctx, s)
	case "memory":
		known := map[string]string{}
		for _, m := range s.matches {
			known[m.repository] = m.commit
		}
		return func(_ context.Context, m searchMatch) error {
			if known[m.repository] != m.commit {
				return errors.New("a result of another commit")
			}
			return nil
		}, func() {}, nil
	}
	return func(context.Context, searchMatch) error { return nil }, func() {}, nil
}

// byProcess works like the front end of the study for each result.
func (o *searchOptions) byProcess(s *searched, transport *http.Transport) func(context.Context, searchMatch) error {
	list := s.String() + "/-/api/v1/search/status"
	return func(ctx context.Context, m searchMatch) error {
		dir, err := o.repository(m.repository)
		if err != nil {
			return err
		}
		if _, err := gitload.RunGit(ctx, dir, nil, "symbolic-ref", "HEAD"); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, list, nil)
		if err != nil {
			return err
		}
		if credential := s.target.Auth; credential != "" {
			request.Header.Set("Authorization", credential)
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: HTTP status %d", list, answer.StatusCode)
		}
		if err != nil {
			return err
		}
		_, err = gitload.RunGit(ctx, dir, nil, "rev-parse", "--verify", "--end-of-options", m.commit)
		return err
	}
}

// repository returns the directory of a repository of the server.
func (o *searchOptions) repository(name string) (string, error) {
	for _, suffix := range []string{"", ".git"} {
		dir := filepath.Join(o.root, filepath.FromSlash(name)+suffix)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("--root %s has no repository %s", o.root, name)
}

// byRedis keeps each repository's object ID in Redis while the run lasts.
func (o *searchOptions) byRedis(ctx context.Context,
	s *searched) (func(context.Context, searchMatch) error, func(), error) {
	address, err := resolve.ParseRedisURL(o.redis)
	if err != nil || address.TLS {
		return nil, nil, errors.New("--redis: want redis://HOST:PORT/DB")
	}
	pool := &redis.Pool{MaxIdle: 64, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, address.Network, address.Address, redis.DialDatabase(address.Database))
	}}
	do := func(ctx context.Context, command string, args ...any) error {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Do(command, args...)
		return err
	}
	key := func(m searchMatch) string { return "packhorse-bench:" + m.repository }
	var keys []any
	for _, m := range s.matches {
		keys = append(keys, key(m))
		if err := do(ctx, "SET", key(m), m.commit, "EX", int(time.Hour/time.Second)); err != nil {
			pool.Close()
			return nil, nil, fmt.Errorf("--redis: %w", err)
		}
	}
	undo := func() {
		_ = do(context.WithoutCancel(ctx), "DEL", keys...)
		pool.Close()
	}
	return func(ctx context.Context, m searchMatch) error { return do(ctx, "GET", key(m)) }, undo, nil
}
