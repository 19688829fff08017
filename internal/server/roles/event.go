package roles

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
)

// newJournal opens the journal of events of a node without a store.
func newJournal(d *deps) (*event.Journal, error) {
	j, err := event.OpenJournal(event.JournalOptions{Dir: filepath.Join(d.cfg.State, "events"), Registerer: d.reg,
		Log: d.log})
	if err == nil {
		d.life.push("journal of events", j.Close)
	}
	return j, err
}

// events returns the events of the node, or nil if it has none.
func (n *nodeParts) events() event.Log {
	if n.journal != nil {
		return n.journal
	}
	if n.store != nil {
		return n.store.Events()
	}
	return nil
}

// recorders are several Recorders as one.
type recorders []receivepack.Recorder

func (all recorders) Begin(pushes ...*receivepack.Push) error {
	for _, r := range all {
		if err := r.Begin(pushes...); err != nil {
			return err
		}
	}
	return nil
}

func (all recorders) End(results ...receivepack.Result) (failed error) {
	for _, r := range all {
		failed = errors.Join(failed, r.End(results...))
	}
	return failed
}

// recoverEvents finds out what a crash interrupted, and starts the webhooks. It is called before the first push.
func (n *nodeParts) recoverEvents(hooks *webhook.Hooks) error {
	patience, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	alive := n.node.WaitForEarlierPushes(patience)
	if n.journal != nil {
		n.journal.Recover(context.Background(), alive, n.node)
	}
	if hooks == nil {
		return nil
	}
	err := hooks.Recover(context.Background(), alive, n.node.RefValue)
	if err == nil {
		hooks.Start()
	}
	return err
}
