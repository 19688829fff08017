package roles

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// storeLimit is the maximum time to test the object storage at the start.
const storeLimit = 2 * time.Minute

// newStore opens the store of a node. The root is then the directory of local copies. It returns nil if the
// configuration has no store. evicted is called for each repository whose packs are removed.
func newStore(d *deps, evicted func(id string)) (*store.Store, error) {
	cfg := &d.cfg.Store
	if !cfg.Enabled() {
		return nil, checkPlainRoot(d.cfg.Root)
	}
	begin := time.Now()
	opened, err := openStore(&d.cfg, bucket.NewMetrics(d.reg), store.Options{
		Cache: hydrate.Options{Metrics: hydrate.NewMetrics(d.reg), Released: evicted},
		Log:   d.log, Metrics: store.NewMetrics(d.reg),
	})
	if err != nil {
		return nil, err
	}
	d.life.push("store", opened.Close)
	d.life.notes = append(d.life.notes, func() []string {
		return []string{fmt.Sprintf("store: %s with ID %s; %s", cfg.URL, opened.StoreID(), opened.Usage())}
	})
	usage := opened.Usage()
	d.log.Info("opened the store", "url", cfg.URL, "store_id", opened.StoreID(), "node", cfg.NodeName(), "repositories",
		usage.Repositories, "cache_bytes", usage.Bytes, "cache_budget", usage.Budget, "took", time.Since(begin))
	if err := opened.Ready(); err != nil {
		d.log.Warn("the store cannot be used", "url", cfg.URL, "error", err)
	}
	return opened, nil
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
