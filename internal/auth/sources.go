package auth

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// The places that callers and what they may do are known from, as logs, metrics and readiness checks name them.
const (
	SourceTokens         = "tokens"
	SourceRules          = "rules"
	SourceHook           = "hook"
	SourceAuthorizedKeys = "authorized_keys"
	SourceUserCA         = "trusted_user_ca"
	SourceRevokedKeys    = "revoked_keys"
)

// Sources keeps which identity sources cannot be used at the moment. A source that fails, because it is missing,
// unreadable, damaged, or empty where it was not before, never lets in anybody whom it kept out: the callers about whom
// it would have decided get an error of kind Unavailable until it is back. Safe for concurrent use.
type Sources struct {
	log   *slog.Logger
	gauge *prometheus.GaugeVec

	mu  sync.Mutex
	all []*source
}

// NewSources makes an empty list. Auth and Keys add what they use.
func NewSources(m *Metrics, log *slog.Logger) *Sources { return &Sources{log: log, gauge: m.sources} }

// Source is one identity source as a readiness check sees it.
type Source struct {
	Name string
	// Check reads the source again if it may have changed, and returns why it cannot be used; nil if it can.
	Check func() error
}

// List returns the sources that are in use.
func (s *Sources) List() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Source
	for _, one := range s.all {
		list = append(list, Source{one.name, one.check})
	}
	return list
}

// add returns a source that works. look, unless nil, looks at it again, reports what it finds, and may be called at any
// time.
func (s *Sources) add(name string, look func()) *source {
	one := &source{name: name, look: look, log: s.log, failed: s.gauge.WithLabelValues(name)}
	one.failed.Set(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(old *source) bool { return old.name == name })
	s.all = append(s.all, one)
	return one
}

// source is one identity source.
type source struct {
	name   string
	look   func()
	soft   bool // there are other ways than this source: a failure is no reason to get no requests
	log    *slog.Logger
	failed prometheus.Gauge

	mu  sync.Mutex
	err error
}

// report keeps the state of the source, and logs each change of it once. Nil receivers are for sources that are not
// configured.
func (s *source) report(err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && s.err != nil:
		s.failed.Set(0)
		s.log.Info("an identity source works again", "source", s.name)
	case err != nil && (s.err == nil || s.err.Error() != err.Error()):
		s.failed.Set(1)
		s.log.Error("an identity source failed", "source", s.name, "error", err)
	}
	s.err = err
}

func (s *source) check() error {
	if s.look != nil {
		s.look()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.soft {
		return nil
	}
	return s.err
}
