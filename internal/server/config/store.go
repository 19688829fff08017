package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"

	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// StoreConfig keeps repositories in object storage, where several nodes share them (docs/how-to/store.md). The root is
// then a cache, which the node creates and may delete. Mirrors are not possible together with a store.
type StoreConfig struct {
	// URL is the bucket and the prefix of the store, as in "s3://git-prod/packhorse". "packhorse store init" creates the
	// store. Empty means none.
	URL string `toml:"url"`

	// Endpoint is the URL of an S3-compatible server, as in "https://s3.example:9000". Empty means the variables
	// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else Amazon S3 in the region. No cache may be in between.
	Endpoint string `toml:"endpoint" needs:"url"`

	// Region is the region of the bucket. Empty means the variable AWS_REGION, or us-east-1.
	Region string `toml:"region"`

	// PathStyle sends the name of the bucket in the path of a request and not in the host, as most servers other than
	// Amazon S3 need it.
	PathStyle bool `toml:"path_style"`

	// CredentialsFile is a file with access keys in the format of ~/.aws/credentials. Changes apply within five seconds.
	// Empty means AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, else the web identity or the role of the machine.
	CredentialsFile string `toml:"credentials_file" path:"file"`

	// Profile is the section of credentials_file. Empty means the variable AWS_PROFILE, or "default".
	Profile string `toml:"profile" needs:"credentials_file"`

	// Node is the name of this node in records and logs. Nodes of one store need different names. Empty means the name of
	// the machine.
	Node string `toml:"node"`

	// Cache is the maximum size of the packs below the root. Those of repositories that were used least recently are
	// removed from this machine. 0 means three quarters of the file system. A twentieth of it, at most 5 GiB, always stays
	// free.
	Cache Size `toml:"cache"`

	// MaxStaleness is how old an answer about refs may be. 0 means that each answer is current, and costs a request to the
	// store that concurrent clients share.
	MaxStaleness Duration `toml:"max_staleness"`

	// StaleIfError is how old answers about refs may be while the store does not answer. 0 means that clients get 503
	// meanwhile. Fetches of known tips continue in either case.
	StaleIfError Duration `toml:"stale_if_error"`
}

// Enabled reports whether repositories are in a store.
func (s *StoreConfig) Enabled() bool { return s.URL != "" }

// NodeName returns the name of this node.
func (s *StoreConfig) NodeName() string {
	if s.Node != "" {
		return s.Node
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// BucketOptions returns the options of the bucket. metrics may be nil.
func (s *StoreConfig) BucketOptions(metrics *bucket.Metrics) bucket.Options {
	return bucket.Options{URL: s.URL, Endpoint: s.Endpoint, Region: s.Region, PathStyle: s.PathStyle,
		CredentialsFile: s.CredentialsFile, Profile: s.Profile, Metrics: metrics}
}

// checkStore checks the store, and keys that are not possible together with one.
func (c *Config) checkStore(f *Findings) {
	c.Store.check(f)
	if !c.Store.Enabled() {
		return
	}
	if len(c.Mirror) > 0 {
		f.at("mirror", "mirrors and a store are not possible in one process: remove [[mirror]] or [store], or run "+
			"\"packhorse mirror\" as another process")
	}
	if c.Auth.Origin.URL != "" {
		f.at("auth.origin", "auth.origin needs the repositories of the forge on this disk: remove it or [store]")
	}
}

// Check reports values of the table that are wrong. The error joins all of them.
func (s *StoreConfig) Check() error {
	f := &Findings{}
	s.check(f)
	for _, setting := range settingsOf("store.", reflect.ValueOf(s).Elem()) {
		setting.check(f)
	}
	return f.Err()
}

func (s *StoreConfig) check(f *Findings) {
	if !s.Enabled() {
		return
	}
	f.add("store.url", s.checkURL())
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Trim(u.Path, "/") != "" ||
			u.User != nil || u.RawQuery != "" {
			f.at("store.endpoint", "store.endpoint: %q is not the URL of a server, as in https://s3.example:9000", s.Endpoint)
		}
	}
}

// checkURL returns an error if the URL does not name a bucket.
func (s *StoreConfig) checkURL() error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL, as in s3://BUCKET/PREFIX", s.URL)
	case u.User != nil:
		return errors.New("credentials are not part of the URL: see store.credentials_file")
	case u.Scheme != "s3" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q does not name a bucket, as in s3://BUCKET/PREFIX", s.URL)
	}
	return nil
}
