package auth

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Names of identity sources in logs, metrics and readiness checks.
const (
	SourceTokens         = "tokens"
	SourceRules          = "rules"
	SourceAccess         = "access_log" // tokens and rules in a store
	SourceHook           = "hook"
	SourceAuthorizedKeys = "authorized_keys"
	SourceUserCA         = "trusted_user_ca"
	SourceRevokedKeys    = "revoked_keys"
	SourceOIDC           = "oidc" // and the issuer
)

// Sources records which identity sources fail: they are missing, unreadable, damaged, or empty although they were not
// before. A failing source never gives access to callers that it refused before. Its callers get an error of kind
// Unavailable until it works again. Safe for concurrent use.
type Sources struct {
	log   *slog.Logger
	gauge *prometheus.GaugeVec

	mu  sync.Mutex
	all []*source
}

// NewSources makes an empty list. Authenticators and Auth add their sources.
func NewSources(m *Metrics, log *slog.Logger) *Sources { return &Sources{log: log, gauge: m.sources} }

// Source is an identity source for readiness checks.
type Source struct {
	Name string
	// Check reads the source again if it may have changed, and returns the reason if it fails.
	Check func() error
}

// List returns the sources.
func (s *Sources) List() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Source
	for _, one := range s.all {
		list = append(list, Source{one.name, one.status})
	}
	return list
}

// add adds a source, which works. check examines it again and reports the result. It may be nil and is called at any
// time. A source with the same name is replaced.
func (s *Sources) add(name string, check func()) *source {
	one := &source{name: name, check: check, log: s.log, failed: s.gauge.WithLabelValues(name)}
	one.failed.Set(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(old *source) bool { return old.name == name })
	s.all = append(s.all, one)
	return one
}

// source is one identity source.
type source struct {
	name     string
	check    func()
	optional bool // the server is ready even if the source fails
	log      *slog.Logger
	failed   prometheus.Gauge

	mu  sync.Mutex
	err error
}

// report records the state of the source and logs each change once. A nil source is not configured.
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

// status implements Source.Check.
func (s *source) status() error {
	if s.check != nil {
		s.check()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.optional {
		return nil
	}
	return s.err
}
