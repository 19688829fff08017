package store

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Bucket implements webhook.Store.
func (s *Store) Bucket() bucket.Bucket { return s.bucket }

// Position implements webhook.Store.
func (s *Store) Position(ctx context.Context, path git.RepoPath) (id string, record uint64, err error) {
	r, err := s.find(ctx, canonical(path))
	if err != nil {
		return "", 0, err
	}
	defer s.release(r)
	return r.id, r.known().record.Number, nil
}

// PushResult implements webhook.Store. A record that commits several pushes has their changes together. So if some
// updates of a push were refused, only those are returned whose value the record has.
func (s *Store) PushResult(ctx context.Context, id string, after uint64, push string, updates []receivepack.Update) (
	made []receivepack.Update, number uint64, err error) {
	log := replog.Open(s.bucket, id)
	for number = after + 1; ; number++ {
		record, err := log.Get(ctx, number)
		if fault.Is(err, fault.NotFound) {
			return nil, number - 1, nil
		}
		if err != nil {
			return nil, number - 1, err
		}
		i := slices.IndexFunc(record.Pushes, func(p replog.Push) bool { return p.ID == push })
		if i < 0 {
			continue
		}
		if record.Pushes[i].Refs == len(updates) {
			return updates, number, nil
		}
		for _, entry := range record.Refs.Tail {
			for _, c := range entry.Changes {
				u := slices.IndexFunc(updates, func(u receivepack.Update) bool {
					return u.Ref == c.Name && (u.New == c.New || u.New.IsZero() && c.New.IsZero())
				})
				if u >= 0 && entry.Number == number {
					made = append(made, updates[u])
				}
			}
		}
		return made, number, nil
	}
}
