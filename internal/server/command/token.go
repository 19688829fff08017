package command

import (
	"cmp"
	"context"
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

// tokenManager manages tokens: an auth.Access, or a server.
type tokenManager interface {
	Mint(context.Context, auth.TokenRequest) (secret string, made auth.Token, err error)
	List(context.Context) ([]auth.Token, error)
	Revoke(context.Context, string) ([]auth.Token, error)
}

// manager returns what manages the tokens. With prepare, the file of tokens can be created.
func (p *tokenPlace) manager(prepare bool) (tokenManager, config.Config, error) {
	file, cfg, err := p.file()
	if prepare {
		file, cfg, err = p.prepared()
	}
	if err != nil || !cfg.Auth.Shared {
		return auth.AccessInFile(file), cfg, err
	}
	return serverTokens{&adminClient{p.target, config.RoleGateway, "server"}}, cfg, nil
}

// serverTokens manages the tokens in a store through a running server.
type serverTokens struct{ *adminClient }

func (s serverTokens) call(do func(packhorsev1connect.TokenServiceClient) error) error {
	return s.with(func(server *client.Client) error { return answerOf(do(server.Tokens())) })
}

func (s serverTokens) Mint(ctx context.Context, r auth.TokenRequest) (secret string, made auth.Token, err error) {
	m := &packhorsev1.MintRequest{Name: r.Name, Scope: r.Scope.String(), Repositories: r.Repositories, Refs: r.Refs}
	if !r.Expires.IsZero() {
		m.LifetimeSeconds = int64(time.Until(r.Expires).Round(time.Second) / time.Second)
	}
	err = s.call(func(tokens packhorsev1connect.TokenServiceClient) error {
		done, err := tokens.Mint(ctx, connect.NewRequest(m))
		if err == nil {
			secret, made = done.Msg.GetSecret(), auth.TokenOf(done.Msg.GetToken())
		}
		return err
	})
	return secret, made, err
}

func (s serverTokens) List(ctx context.Context) (list []auth.Token, err error) {
	err = s.call(func(tokens packhorsev1connect.TokenServiceClient) error {
		got, err := tokens.List(ctx, connect.NewRequest(&packhorsev1.TokenServiceListRequest{}))
		if err == nil {
			list = tokensOf(got.Msg.GetTokens())
		}
		return err
	})
	return list, err
}

func (s serverTokens) Revoke(ctx context.Context, which string) (list []auth.Token, err error) {
	err = s.call(func(tokens packhorsev1connect.TokenServiceClient) error {
		got, err := tokens.Revoke(ctx, connect.NewRequest(&packhorsev1.RevokeRequest{Token: which}))
		if err == nil {
			list = tokensOf(got.Msg.GetRevoked())
		}
		return err
	})
	return list, err
}

func tokensOf(list []*packhorsev1.Token) (all []auth.Token) {
	for _, m := range list {
		all = append(all, auth.TokenOf(m))
	}
	return all
}

// prepared returns the same as file, and creates the directory of the token file. A new directory belongs to the owner
// of the root.
func (p *tokenPlace) prepared() (auth.TokenFile, config.Config, error) {
	file, cfg, err := p.file()
	if err != nil {
		return file, cfg, err
	}
	owner := statedir.Self()
	if cfg.Root != "" {
		if owner, err = statedir.OwnerOf(cfg.Root); err != nil {
			return file, cfg, err
		}
	}
	return file, cfg, owner.MakeStateDir(filepath.Dir(cfg.Auth.Tokens))
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
	var scope, expires string
	var repositories, refs []string
	var asJSON *bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token and print it once",
		Long: `Create creates a token for NAME and prints it to standard output. It is not stored, and cannot be shown again. A name may
have several tokens: to replace one, create another and revoke the first. The [[auth.rule]] tables set the permissions of
NAME. Without rules a token has the permission of its scope.`,
		Example: `  packhorse token create alice --scope write --root /srv/git
  packhorse token create ci --repo 'team/**' --repo tools/build --expires 90d --state /var/lib/packhorse`,
		Args: exactArgs(1, "one NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			op, err := auth.ParseOperation(scope)
			if err != nil {
				return usage(fmt.Errorf("--scope: %w", err))
			}
			until, err := parseExpiry(expires, now)
			if err != nil {
				return usage(fmt.Errorf("--expires: %w", err))
			}
			tokens, cfg, err := place.manager(true)
			if err != nil {
				return err
			}
			token, made, err := tokens.Mint(cmd.Context(), auth.TokenRequest{Name: args[0], Scope: op,
				Repositories: repositories, Refs: refs, Expires: until})
			if err != nil {
				return err
			}
			if *asJSON {
				return encodeJSON(cmd.OutOrStdout(), struct {
					Token string `json:"token"`
					tokenJSON
				}{token, jsonOf(made)})
			}
			fmt.Fprintf(cmd.ErrOrStderr(),
				"%s: may %s %s, %s. The token is not shown again. Use it as the password, with any user name.\n",
				made.ID, made.Scope, strings.Join(orAll(made.Repositories), " "), expiryText(made))
			if made.ID == made.Name+"/1" && !cfg.HTTP.PublicRead && len(cfg.Auth.Rule) == 0 && cfg.Auth.Hook.URL == "" {
				fmt.Fprintf(cmd.ErrOrStderr(),
					"This is the first token in %s. Reading from its server now requires a token, unless the server runs with "+
						"--public-read (http.public_read = true).\n", cfg.Auth.Tokens)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "read", "the highest permission: `read|write|admin`")
	cmd.Flags().StringArrayVar(&repositories, "repo", nil,
		"limit it to repositories that match `PATTERN`, like team/app, team/* or team/**; can be repeated (default all)")
	cmd.Flags().StringArrayVar(&refs, "ref", nil,
		"limit its changes to refs that match `PATTERN`, like refs/heads/ci/**; can be repeated (default all)")
	cmd.Flags().StringVar(&expires, "expires", "never", "expire after a `DURATION` like 90d, 12h or 1m")
	asJSON = jsonFlag(cmd)
	return cmd
}

// parseExpiry parses a period from now: days, a duration, or "never", which is the zero time.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "never" {
		return time.Time{}, nil
	}
	d, err := parsePeriod(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w, or never", err)
	}
	return now.Add(d), nil
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

func orAll(repositories []string) []string {
	if len(repositories) == 0 {
		return []string{"all repositories"}
	}
	return repositories
}

func expiryText(t auth.Token) string {
	if t.Expires.IsZero() {
		return "without expiry"
	}
	return "until " + t.Expires.Format(time.DateTime) + " UTC"
}

// tokenJSON is a token in the output of --json, without its hash.
type tokenJSON struct {
	auth.Token
	Hash *string   `json:"sha256,omitempty"` // always nil
	Used time.Time `json:"used,omitzero"`
}

func jsonOf(t auth.Token) tokenJSON { return tokenJSON{Token: t, Used: t.Used} }

func tokenListCommand(place *tokenPlace) *cobra.Command {
	var asJSON *bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tokens",
		Long:    `List shows each token with its scope, its expiry, and its last use, which the server records once a minute.`,
		Example: "  packhorse token list --root /srv/git\n  packhorse token list --json --config /etc/packhorse.toml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tokens, _, err := place.manager(false)
			if err != nil {
				return err
			}
			all, err := tokens.List(cmd.Context())
			if err != nil {
				return err
			}
			list := []tokenJSON{}
			for _, t := range all {
				list = append(list, jsonOf(t))
			}
			return printResult(cmd, *asJSON, list, func(w io.Writer) error { return writeTokens(w, all, time.Now()) })
		},
	}
	asJSON = jsonFlag(cmd)
	return cmd
}

func writeTokens(w io.Writer, all []auth.Token, now time.Time) error {
	day := func(t time.Time, never string) string {
		if t.IsZero() {
			return never
		}
		return t.Format(time.DateOnly)
	}
	table := newTable(w, "TOKEN\tSCOPE\tCREATED\tEXPIRES\tUSED\tREPOSITORIES\tREFS")
	for _, t := range all {
		expires := day(t.Expires, "never")
		if !t.Expires.IsZero() && !now.Before(t.Expires) {
			expires = "expired"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Scope, day(t.Created, ""), expires, day(t.Used, "never"),
			strings.Join(orAll(t.Repositories), " "), cmp.Or(strings.Join(t.Refs, " "), "all"))
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
			tokens, _, err := place.manager(false)
			if err != nil {
				return err
			}
			gone, err := tokens.Revoke(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, t := range gone {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: revoked\n", t.ID)
			}
			return nil
		},
	}
}
