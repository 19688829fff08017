package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// tokenPlace locates the token file of a server. The server need not run.
type tokenPlace struct{ target }

// file returns the token file of serve if a root is named, and that of a gateway otherwise. It does not create the
// file.
func (p *tokenPlace) file() (auth.TokenFile, config.Config, error) {
	cfg, err := p.load()
	if err != nil {
		return auth.TokenFile{}, cfg, err
	}
	role := config.RoleServe
	if cfg.Root == "" {
		role = config.RoleGateway
	}
	cfg.Complete(role, p.env.Getenv)
	if cfg.Auth.Tokens == "" {
		err = usage(errors.New("no server is named: add its --root DIR, --state DIR or --config FILE"))
	}
	return auth.NewTokenFile(cfg.Auth.Tokens), cfg, err
}

// with calls do with what manages the tokens: this process, or a server if they are in a store. With prepare, the file
// of tokens can be created.
func (p *tokenPlace) with(prepare bool, do func(packhorsev1connect.TokenServiceClient, config.Config) error) error {
	file, cfg, err := p.file()
	if err == nil && !cfg.Auth.Shared {
		_, err = statedir.ReadFormat(cfg.State)
	}
	if err == nil && prepare {
		err = p.prepare(cfg)
	}
	switch {
	case err != nil:
		return err
	case !cfg.Auth.Shared:
		return do(&auth.Service{Access: auth.AccessInFile(file)}, cfg)
	}
	c := &adminClient{p.target, config.RoleGateway, "server"}
	return c.with(func(server *client.Client) error { return answerOf(do(server.Tokens(), cfg)) })
}

// prepare creates the directory of the token file. A new directory belongs to the owner of the root.
func (p *tokenPlace) prepare(cfg config.Config) (err error) {
	owner := statedir.Self()
	if cfg.Root != "" {
		if owner, err = statedir.OwnerOf(cfg.Root); err != nil {
			return err
		}
	}
	return owner.MakeStateDir(filepath.Dir(cfg.Auth.Tokens))
}

func tokenCommand(env Env) *cobra.Command {
	place := &tokenPlace{target{env: env}}
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke tokens",
		Long: `Token manages the tokens of serve (--root) or of a gateway. A Git client sends a token as the password, with any user
name. Changes apply to the next request. Only hashes are stored: in STATE/tokens, where the server need not run, or with
auth.shared in the object store, through a running server.`,
		Example: `  packhorse token create alice --scope write --root /srv/git
  packhorse token create ci --repo 'team/**' --expires 90d --config /etc/packhorse.toml
  packhorse token list --root /srv/git
  packhorse token revoke ci/2 --root /srv/git`,
	}
	place.addFlags(cmd.PersistentFlags(), "the server's state directory, `DIR` (default that of the server on the root)")
	return group(cmd, tokenCreateCommand(place), tokenListCommand(place), tokenRevokeCommand(place))
}

func tokenCreateCommand(place *tokenPlace) *cobra.Command {
	var expires string
	request := &packhorsev1.MintRequest{}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token and print it once",
		Long: `Create creates a token for NAME and prints it to standard output. It is not stored, and cannot be shown again. A name may
have several tokens: to replace one, create another and revoke the first.

The rules ([[auth.rule]] and "packhorse rules set") decide what NAME may do, and the token permits at most its scope, its
repositories and its refs of that. Without rules the token permits all of its scope.`,
		Example: `  packhorse token create alice --scope write --root /srv/git
  packhorse token create ci --repo 'team/**' --repo tools/build --expires 90d --state /var/lib/packhorse`,
		Args: exactArgs(1, "one NAME"),
	}
	cmd.Flags().StringVar(&request.Scope, "scope", "read", "what it permits at most: `read|write|admin`")
	cmd.Flags().StringArrayVar(&request.Repositories, "repo", nil,
		"limit it to repositories that match `PATTERN`, like team/app, team/* or team/**; can be repeated (default all)")
	cmd.Flags().StringArrayVar(&request.Refs, "ref", nil,
		"limit its changes to refs that match `PATTERN`, like refs/heads/ci/**; can be repeated (default all)")
	cmd.Flags().StringVar(&expires, "expires", "never", "expire after a `DURATION` like 90d, 12h or 1m")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request.Name = args[0]
		if _, err := auth.ParseOperation(request.Scope); err != nil {
			return usage(fmt.Errorf("--scope: %w", err))
		}
		if expires != "never" {
			period, err := parsePeriod(expires)
			if err != nil {
				return usage(fmt.Errorf("--expires: %w, or never", err))
			}
			if period < time.Minute {
				return usage(fmt.Errorf("--expires: %s is less than a minute", expires))
			}
			request.LifetimeSeconds = int64(period / time.Second)
		}
		return place.with(true, func(tokens packhorsev1connect.TokenServiceClient, cfg config.Config) error {
			minted, err := tokens.Mint(cmd.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if *asJSON {
				return encodeJSON(cmd.OutOrStdout(), struct {
					Secret string `json:"token"`
					*packhorsev1.Token
				}{minted.Msg.GetSecret(), minted.Msg.GetToken()})
			}
			describeToken(cmd.ErrOrStderr(), minted.Msg.GetToken(), cfg)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), minted.Msg.GetSecret())
			return err
		})
	}
	return cmd
}

// describeToken describes a new token and where its hash is.
func describeToken(w io.Writer, made *packhorsev1.Token, cfg config.Config) {
	expiry, where := "without expiry", cfg.Auth.Tokens
	if made.GetExpires() != "" {
		expiry = "until " + strings.NewReplacer("T", " ", "Z", " UTC").Replace(made.GetExpires())
	}
	if cfg.Auth.Shared {
		where = "the object store"
	}
	fmt.Fprintf(w, "%s: may at most %s %s, %s. Its hash is in %s. The token is not shown again. Use it as the password, "+
		"with any user name.\n", made.GetId(), made.GetScope(), orAll(made.GetRepositories()), expiry, where)
	if made.GetId() == made.GetName()+"/1" && !cfg.HTTP.PublicRead && len(cfg.Auth.Rule) == 0 && cfg.Auth.Hook.URL == "" {
		fmt.Fprintln(w, "This is the first token there. Reading from its server now requires a token, unless the server "+
			"runs with --public-read (http.public_read = true).")
	}
}

// parsePeriod parses days or a duration: "90d", "12h".
func parsePeriod(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n <= 100*366 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	} else if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is not a period: write it as in 90d or 12h", text)
}

func orAll(repositories []string) string {
	return cmp.Or(strings.Join(repositories, " "), "all repositories")
}

func tokenListCommand(place *tokenPlace) *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tokens",
		Long:    `List shows each token with its scope, its expiry, and its last use, which the server records once a minute.`,
		Example: "  packhorse token list --root /srv/git\n  packhorse token list --json --config /etc/packhorse.toml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return place.with(false, func(tokens packhorsev1connect.TokenServiceClient, _ config.Config) error {
				all, err := tokens.List(cmd.Context(), connect.NewRequest(&packhorsev1.TokenServiceListRequest{}))
				if err != nil {
					return err
				}
				list := append([]*packhorsev1.Token{}, all.Msg.GetTokens()...) // not null as JSON
				return printResult(cmd, *asJSON, list, func(w io.Writer) error { return writeTokens(w, list, time.Now()) })
			})
		},
	}
	asJSON = jsonFlag(cmd)
	return cmd
}

func writeTokens(w io.Writer, all []*packhorsev1.Token, now time.Time) error {
	day := func(at string) string {
		date, _, _ := strings.Cut(at, "T")
		return cmp.Or(date, "never")
	}
	table := newTable(w, "TOKEN\tSCOPE\tCREATED\tEXPIRES\tUSED\tREPOSITORIES\tREFS")
	for _, t := range all {
		expires := day(t.GetExpires())
		if at, err := time.Parse(time.RFC3339, t.GetExpires()); err == nil && !now.Before(at) {
			expires = "expired"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.GetId(), t.GetScope(), day(t.GetCreated()), expires,
			day(t.GetUsed()), orAll(t.GetRepositories()), cmp.Or(strings.Join(t.GetRefs(), " "), "all"))
	}
	return table.Flush()
}

func tokenRevokeCommand(place *tokenPlace) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN|NAME",
		Short: "Revoke a token, or all tokens of a name",
		Long: `Revoke removes the token with the given ID, or all tokens of a name. "packhorse token list" shows the IDs. The next
request with a revoked token is refused.`,
		Example: "  packhorse token revoke ci/2 --root /srv/git\n  packhorse token revoke alice --root /srv/git",
		Args:    exactArgs(1, "one TOKEN or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return place.with(false, func(tokens packhorsev1connect.TokenServiceClient, _ config.Config) error {
				gone, err := tokens.Revoke(cmd.Context(), connect.NewRequest(&packhorsev1.RevokeRequest{Token: args[0]}))
				if err != nil {
					return err
				}
				for _, t := range gone.Msg.GetRevoked() {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: revoked\n", t.GetId())
				}
				return nil
			})
		},
	}
}
