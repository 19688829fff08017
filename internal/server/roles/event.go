package roles

import (
	"context"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/node/event"
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

// recoverEvents records the events of changes that a crash interrupted, and starts the webhooks. It is called before
// the first push.
func (n *nodeParts) recoverEvents() {
	if n.journal != nil {
		patience, cancel := context.WithTimeout(context.Background(), settlePatience)
		defer cancel()
		n.journal.Recover(context.Background(), n.node.WaitForEarlierPushes(patience), n.node)
	}
	if n.hooks != nil {
		n.hooks.Start()
	}
}
