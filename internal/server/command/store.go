package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

func storeCommand(env Env) *cobra.Command {
	f := &storeFinder{env: env}
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Create, check, fill, clean and promote a store in object storage",
		Long: `Store manages a store: the repositories of several nodes in S3-compatible object storage. Its commands use the bucket
directly. Nodes may run or not.

The store is that of the table [store] of --config, and flags win over it. Access keys come from the variables
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, from --credentials-file, or from the role of the machine.`,
		Example: `  packhorse store init s3://git-prod/packhorse
  packhorse store import /srv/git --config /etc/packhorse/store.toml
  packhorse serve --store s3://git-prod/packhorse --root /var/cache/packhorse   # on as many machines as you like

  packhorse store check --deep --config /etc/packhorse/store.toml
  packhorse store gc --older-than 7d --dry-run --config /etc/packhorse/store.toml`,
	}
	f.addFlags(cmd)
	return group(cmd, storeInit(f), storeImport(f), storeCheck(f), storeGC(f), storeForget(f), storePromote(f))
}

// storeFinder finds the bucket for a command.
type storeFinder struct {
	env    Env
	config string
	root   string             // of a node of the store; empty: not given
	flags  config.StoreConfig // values of the flags; empty ones are not set
}

func (f *storeFinder) addFlags(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.config, "config", "", "read the table [store] of the configuration `FILE`")
	flags.StringVar(&f.flags.URL, "store", "", "use the store at `URL`, s3://BUCKET/PREFIX")
	flags.StringVar(&f.flags.Endpoint, "endpoint", "",
		"use the S3 server at `URL` (default that of AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or Amazon S3)")
	flags.StringVar(&f.flags.Region, "region", "", "`REGION` of the bucket (default that of AWS_REGION, or us-east-1)")
	flags.BoolVar(&f.flags.PathStyle, "path-style", false, "send the bucket's name in the path and not in the host")
	flags.StringVar(&f.flags.CredentialsFile, "credentials-file", "", "`FILE` with access keys, as ~/.aws/credentials")
	flags.StringVar(&f.flags.Profile, "profile", "", "`SECTION` of the credentials file")
}

// settings returns the table [store] with the flags over it.
func (f *storeFinder) settings() (config.StoreConfig, error) {
	cfg := config.DefaultConfig()
	if f.config != "" {
		if err := config.LoadFile(f.config, &cfg, config.Origins{}); err != nil {
			return cfg.Store, usage(err)
		}
	}
	s := &cfg.Store
	s.URL, s.Endpoint = cmp.Or(f.flags.URL, s.URL), cmp.Or(f.flags.Endpoint, s.Endpoint)
	s.Region, s.PathStyle = cmp.Or(f.flags.Region, s.Region), f.flags.PathStyle || s.PathStyle
	s.CredentialsFile = cmp.Or(f.flags.CredentialsFile, s.CredentialsFile)
	s.Profile = cmp.Or(f.flags.Profile, s.Profile)
	if s.URL == "" && f.root != "" {
		var err error
		if s.URL, err = store.CacheURL(f.root); err != nil {
			return *s, usage(err)
		}
	}
	if s.URL == "" {
		return *s, usage(errors.New("which store? name it with --store s3://BUCKET/PREFIX, or with --config FILE whose " +
			"table [store] has its url"))
	}
	return *s, usage(s.Check())
}

// open returns the bucket. It does not connect.
func (f *storeFinder) open() (*bucket.S3, config.StoreConfig, error) {
	s, err := f.settings()
	if err != nil {
		return nil, s, err
	}
	b, err := bucket.New(s.BucketOptions(nil))
	return b, s, usage(err)
}

func storeInit(f *storeFinder) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [URL]",
		Short: "Test an object storage, and make a prefix of a bucket a store",
		Long: `Init tests whether the storage keeps the promises that a store needs. Of 32 concurrent creates of one key exactly one has
to succeed. Reads have to see finished writes. Checksums, ranges, lists and the clock have to be right. Then it creates
packhorse.json in the bucket.

The bucket has to exist. The prefix has to be empty. A store that exists is not changed, so init is also a test of it.`,
		Example: `  packhorse store init s3://git-prod/packhorse --region eu-central-1
  packhorse store init s3://git/packhorse --endpoint http://127.0.0.1:7070 --path-style`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && f.flags.URL != "" {
				return fmt.Errorf("%s takes one URL, got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			f.flags.URL = args[0]
		}
		b, s, err := f.open()
		if err != nil {
			return err
		}
		if err := checkParents(cmd.Context(), s); err != nil {
			return err
		}
		report, err := bucket.Probe(cmd.Context(), b, bucket.ProbeOptions{Thorough: true})
		if report != nil && !*asJSON {
			writeProbe(cmd.OutOrStdout(), report)
			if err != nil && len(report.Checks) > 0 {
				return fmt.Errorf("%s cannot be a store: see the checks that failed", s.URL)
			}
		}
		if err != nil {
			return err
		}
		id, err := store.Init(cmd.Context(), b)
		isNew := err == nil
		if err != nil && (id.ID == "" || !fault.Is(err, fault.Exists)) {
			return err
		}
		text := fmt.Sprintf("%s is a store already, with ID %s", s.URL, id.ID)
		if isNew {
			text = fmt.Sprintf("created the store %s with ID %s\nnext: %s", s.URL, id.ID, f.nextStep())
		}
		return printLine(cmd, *asJSON, struct {
			URL     string         `json:"url"`
			ID      string         `json:"id"`
			Created bool           `json:"created"`
			Probe   *bucket.Report `json:"probe"`
		}{s.URL, id.ID, isNew, report}, "%s", text)
	}
	return cmd
}

// checkParents returns an error if a prefix above that of the store is a store. A prefix that cannot be read counts as
// none.
func checkParents(ctx context.Context, s config.StoreConfig) error {
	name, prefix, _ := strings.Cut(strings.Trim(strings.TrimPrefix(s.URL, "s3://"), "/"), "/")
	for prefix != "" {
		prefix = strings.Trim(path.Dir("/"+prefix), "/")
		above := s
		above.URL = "s3://" + strings.Trim(name+"/"+prefix, "/")
		b, err := bucket.New(above.BucketOptions(nil))
		if err != nil {
			return usage(err)
		}
		if id, err := store.ReadIdentity(ctx, b); err == nil {
			return fmt.Errorf("%s is inside the store %s with ID %s: use a prefix beside it", s.URL, above.URL, id.ID)
		}
	}
	return nil
}

// nextStep returns what to do after init. The commands find the store with the same settings.
func (f *storeFinder) nextStep() string {
	flags := ""
	if f.flags.URL != "" {
		flags += " --store " + f.flags.URL
	}
	if f.config != "" {
		flags += " --config " + f.config
	}
	hint := ""
	if f.flags != (config.StoreConfig{URL: f.flags.URL}) {
		flags, hint = " --config FILE", "write the url and the values of the flags into the table [store] of a FILE; then "
	}
	return fmt.Sprintf("%spackhorse store import DIR%s, or packhorse serve%[2]s --root CACHE-DIR", hint, flags)
}

// writeProbe prints the checks of a probe.
func writeProbe(w io.Writer, r *bucket.Report) {
	table := newTable(w, "")
	for _, c := range r.Checks {
		result := "ok"
		if !c.OK {
			result = "FAILED"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", result, c.Name, c.Detail)
		if c.Remedy != "" {
			fmt.Fprintf(table, "\t\t%s\n", c.Remedy)
		}
	}
	table.Flush()
}

// progressInterval is the time between two lines of a progress on a terminal.
const progressInterval = 100 * time.Millisecond

// terminalProgress returns a function that shows a line of progress on a terminal, and one that removes it. Both are
// safe for concurrent use, and do nothing if w is not a terminal.
func terminalProgress(w io.Writer) (show func(line string), end func()) {
	if !observe.IsTerminal(w) {
		return func(string) {}, func() {}
	}
	var mu sync.Mutex
	var shown time.Time
	show = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(shown) >= progressInterval {
			shown = time.Now()
			fmt.Fprint(w, "\r\x1b[K"+fault.Cut(line, 100))
		}
	}
	return show, func() {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, "\r\x1b[K")
	}
}

// countProgress is terminalProgress for work on a number of things.
func countProgress(w io.Writer) (show store.Progress, end func()) {
	line, end := terminalProgress(w)
	return func(done, total int64, what string) {
		if total > 0 {
			line(fmt.Sprintf("%d of %d  %s", done, total, what))
		} else {
			line(fmt.Sprintf("%d  %s", done, what))
		}
	}, end
}
