package roles

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// storeLimit is the maximum time to test the object storage at the start.
const storeLimit = 2 * time.Minute

// addStore opens the store of the node, if the configuration has one. The root is then the directory of local copies.
func (s *server) addStore() error {
	cfg := &s.cfg.Store
	if !cfg.Enabled() {
		return checkPlainRoot(s.cfg.Root)
	}
	begin := time.Now()
	var err error
	s.store, err = openStore(&s.cfg, bucket.NewMetrics(s.reg), store.Options{
		Cache: hydrate.Options{Metrics: hydrate.NewMetrics(s.reg), Released: s.evicted},
		Log:   s.log, Metrics: store.NewMetrics(s.reg),
	})
	if err != nil {
		return err
	}
	s.closers.push("store", s.store.Close)
	s.notes = append(s.notes, func() []string {
		return []string{fmt.Sprintf("store: %s with ID %s; %s", cfg.URL, s.store.StoreID(), s.store.Usage())}
	})
	usage := s.store.Usage()
	s.log.Info("opened the store", "url", cfg.URL, "store_id", s.store.StoreID(), "node", cfg.NodeName(), "repositories",
		usage.Repositories, "cache_bytes", usage.Bytes, "cache_budget", usage.Budget, "took", time.Since(begin))
	if err := s.store.Ready(); err != nil {
		s.log.Warn("the store cannot be used", "url", cfg.URL, "error", err)
	}
	return nil
}

// evicted closes the files of a repository whose packs were removed. No file is open before there is a node.
func (s *server) evicted(id string) {
	if s.node != nil {
		s.node.Evicted(id)
	}
}

// openStore opens the store of a configuration. The options have the parts that are not in the configuration. metrics
// may be nil.
func openStore(cfg *config.Config, metrics *bucket.Metrics, o store.Options) (*store.Store, error) {
	table := &cfg.Store
	b, err := bucket.New(table.BucketOptions(metrics))
	if err != nil {
		return nil, err
	}
	o.Bucket, o.URL, o.Node = b, table.URL, table.NodeName()
	o.Cache.Root, o.Cache.Budget = cfg.Root, int64(table.Cache)
	o.MaxStaleness, o.StaleIfError = table.MaxStaleness.Duration, table.StaleIfError.Duration
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	opened, err := store.Open(ctx, o)
	if detail, ok := errors.AsType[*bucket.Error](err); ok && detail.Remedy != "" {
		err = detail // names the key and the remedy
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", table.URL, err)
	}
	return opened, nil
}

// followStore lets watches and the search index notice changes that other nodes have made. It is called before the
// first request.
func (s *server) followStore() {
	if s.store == nil {
		return
	}
	s.store.OnChange(func(path git.RepoPath) {
		s.node.CheckWatches(path)
		if s.search != nil {
			s.search.Touch(path)
		}
	})
}

// checkCopy lets a repository with damaged packs be copied again, if its packs are copies.
func (s *server) checkCopy(id string) {
	if s.store != nil {
		s.store.CheckCopy(id)
	}
}

// checkPlainRoot returns an error if the root is the cache of a store. Its repositories must not be served or changed
// without the store.
func checkPlainRoot(root string) error {
	isCache, err := store.IsCache(root)
	if err != nil {
		return err
	}
	if isCache {
		return fmt.Errorf("the root %s is the cache of a store: name a configuration with the table [store] by --config "+
			"FILE (serve and storage also have --store URL)", root)
	}
	return nil
}
