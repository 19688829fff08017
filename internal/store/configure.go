package store

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Configure implements places.Place.
func (p *place) Configure(ctx context.Context, change func(places.Settings) error) error {
	return p.configure(ctx, func(_ *state, s places.Settings) error { return change(s) })
}

// configure is Configure for a change that depends on the state.
func (p *place) configure(ctx context.Context, change func(*state, places.Settings) error) error {
	_, err := p.change(ctx, func(head *state) (*replog.Record, error) {
		if !head.has(p.path) {
			return nil, notFound(p.path)
		}
		settings := make(places.Settings)
		for _, s := range head.record.Config {
			settings.Add(s.Key, s.Value)
		}
		changed, err := settings.Change(func(s places.Settings) error { return change(head, s) })
		if err != nil {
			return nil, err
		}
		if len(changed) == 0 {
			return nil, errNoChange
		}
		next := head.record.Next(replog.KindConfigure, p.store.options.Node, time.Now())
		next.Config = slices.DeleteFunc(next.Config, func(s replog.Setting) bool { return slices.Contains(changed, s.Key) })
		for _, key := range changed {
			for _, value := range settings[key] {
				next.Config = append(next.Config, replog.Setting{Key: key, Value: value})
			}
		}
		next.Quota = quotaOf(next.Config)
		return p.happened(ctx, next, event.Event{Kind: event.Configure, Repository: event.NameOf(p.path)}), nil
	})
	return err
}

// quotaOf returns the quota of packs in a configuration. Zero means no limit.
func quotaOf(config []replog.Setting) (quota int64) {
	for _, s := range config {
		if s.Key == repo.QuotaKey {
			n, _ := git.ParseSize(s.Value)
			quota = int64(min(n, math.MaxInt64))
		}
	}
	return quota
}

// isRule reports whether a setting can decide about a push.
func isRule(s replog.Setting) bool {
	return !strings.HasPrefix(s.Key, "gitweb.") && !strings.HasPrefix(s.Key, "lfs.") && s.Key != "packhorse.label" &&
		s.Key != "packhorse.unlisted"
}

// sameRules reports whether two configurations have the same rules for pushes.
func sameRules(a, b []replog.Setting) bool {
	rules := func(all []replog.Setting) []replog.Setting {
		return slices.DeleteFunc(slices.Clone(all), func(s replog.Setting) bool { return !isRule(s) })
	}
	return slices.Equal(a, b) || slices.Equal(rules(a), rules(b))
}
