package roles

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// deps is what the parts of a process are built from.
type deps struct {
	role    config.Role
	cfg     config.Config // of the start
	log     *slog.Logger
	reg     prometheus.Registerer
	process Process
	lanes   lanes
	origins origins
	life    *lifecycle
	// mentions lists what names a repository by its former path and not by its new one.
	mentions []func(from, to git.RepoPath) []string
}

// mentionsOf returns all that mentions lists.
func (d *deps) mentionsOf(from, to git.RepoPath) (list []string) {
	for _, mentions := range d.mentions {
		list = append(list, mentions(from, to)...)
	}
	return list
}

// origins are the clients of the origins of mirrors, and of the forge.
type origins struct {
	metrics *origin.Metrics
	lists   []func() []*origin.Origin
}

// status returns the states of the hosts of all origins.
func (o *origins) status() []origin.Status {
	var all []*origin.Origin
	for _, list := range o.lists {
		all = append(all, list()...)
	}
	return origin.StatusOf(all)
}

// lifecycle has what the parts of a process add to its life. The zero value is empty.
type lifecycle struct {
	checks  []observe.Check             // readiness needs all of them
	notes   []func() []string           // lines for the response of /readyz
	reloads []reloadStep                // in the order in which they are applied
	starts  []func(prometheus.Gatherer) // when all parts exist, with the metrics of the process
	drains  []func()                    // announce the shutdown to clients and gateways
	closers []closer                    // the last one closes first
}

// reloadStep applies a part of a reloaded configuration.
type reloadStep struct {
	check func(config.Config) error // must not change anything; may be nil
	apply func(config.Config) error
}

type closer struct {
	part  string // for errors
	close func() error
}

// check adds a readiness check.
func (l *lifecycle) check(name string, look func() error) {
	l.checks = append(l.checks, observe.Check{Name: name, Look: look})
}

// push adds a part that closes before all earlier ones. Its close is called once.
func (l *lifecycle) push(part string, close func() error) {
	l.closers = append(l.closers, closer{part, close})
}

// onReload adds a step to reloads. check may be nil.
func (l *lifecycle) onReload(check, apply func(config.Config) error) {
	l.reloads = append(l.reloads, reloadStep{check, apply})
}

// reload applies a reloaded configuration. After an error of a check, or of the first step, nothing has changed.
func (l *lifecycle) reload(cfg config.Config) error {
	for _, step := range l.reloads {
		if step.check != nil {
			if err := step.check(cfg); err != nil {
				return err
			}
		}
	}
	for _, step := range l.reloads {
		if err := step.apply(cfg); err != nil {
			return err
		}
	}
	return nil
}

// allNotes returns the lines for the response of /readyz.
func (l *lifecycle) allNotes() (lines []string) {
	for _, notes := range l.notes {
		lines = append(lines, notes()...)
	}
	return lines
}

// close closes all parts, the last one first. Its error joins those of all parts. A second call does nothing.
func (l *lifecycle) close() error {
	var failed []error
	for _, one := range slices.Backward(l.closers) {
		if err := one.close(); err != nil {
			failed = append(failed, fmt.Errorf("close the %s: %w", one.part, err))
		}
	}
	l.closers = nil
	return errors.Join(failed...)
}

// infallible returns a closer for a function that cannot fail.
func infallible(close func()) func() error {
	return func() error {
		close()
		return nil
	}
}
