package main

import (
	"encoding/json"

	"github.com/mqbridge/mqb/connectors/builtin"
	"github.com/mqbridge/mqb/route"
	"github.com/spf13/cobra"
)

func (c *cli) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of configuration files",
		Long: `Print the JSON schema of configuration files, made from the types that decode
them (draft 2020-12; JSON, or YAML with -o yaml). Editors complete and check keys
with it: write it to a file, and into the first line of a configuration

  # yaml-language-server: $schema=./mqb.schema.json`,
		Example: "  mqbctl schema > mqb.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			schema := route.Schema(builtin.Registry())
			if c.format == "yaml" {
				return c.print(schema, nil)
			}
			enc := json.NewEncoder(c.out)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(schema)
		},
	}
}
