module mcp-broker.dev/peers/go

go 1.19
