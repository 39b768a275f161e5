"""Pages of the kinds of plans that stand beside experiments on stores."""
