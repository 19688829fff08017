package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// examineStore reports whether the store can be reached and keeps its promises, and the space of its local copies. It
// writes small objects below probe/ and removes them.
func examineStore(ctx context.Context, server *config.Config, r *Report) {
	cfg := &server.Store
	problem := func(kind, subject, text, advice string) {
		r.Add(Finding{Group: GroupStore, Severity: Problem, Kind: kind, Subject: subject, Text: text,
			Advice: advice})
	}
	failed := func(err error) {
		if detail, ok := errors.AsType[*bucket.Error](err); ok && detail.Remedy != "" {
			problem("unreachable", detail.Key, fmt.Sprintf("%s: %v", detail.Operation, detail.Err), detail.Remedy)
			return
		}
		problem("unreachable", cfg.URL, err.Error(), "check the table [store] of the configuration")
	}
	if server.Root == "" {
		r.Fact(GroupStore, "the configuration names no root for copies")
	} else if used, err := hydrate.UsageOf(server.Root, int64(cfg.Cache)); err != nil {
		problem("copies", server.Root, err.Error(), "run doctor as root or as the user of the server")
	} else {
		r.Fact(GroupStore, used.String())
	}
	if !cfg.Enabled() {
		problem("not-configured", server.Root, "it has copies of repositories in a store, and the configuration has no store",
			"name the configuration of the server with --config FILE")
		return
	}
	b, err := bucket.New(cfg.BucketOptions(nil))
	if err != nil {
		failed(err)
		return
	}
	id, err := store.ReadIdentity(ctx, b)
	if err != nil {
		failed(err)
		return
	}
	r.Fact(GroupStore, fmt.Sprintf("%s has ID %s and format %d", cfg.URL, id.ID, id.Format))
	report, err := bucket.Probe(ctx, b, bucket.ProbeOptions{})
	if report == nil {
		failed(err)
		return
	}
	for _, c := range report.Checks {
		if !c.OK {
			problem("promise", c.Name, c.Detail, c.Remedy)
		}
	}
	if err == nil {
		r.Fact(GroupStore, fmt.Sprintf("%d checks of the storage passed", len(report.Checks)))
	}
}
